"""Random operations on a store and on the memory store, which is the reference. All results must be equal."""

from dataclasses import replace
from itertools import count

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from toolpack_server.base.errors import MissingBlobError, SessionNotFoundError, VersionNotRetainedError
from toolpack_server.stores.base import Commit, ForkPoint, Head, Lease, Record, SessionQuery
from toolpack_server.testing.store_contract.model import SharedMemory
from toolpack_server.testing.store_contract.samples import (
    claim,
    delete,
    delete_expired,
    existing,
    session,
)


class Comparison(RuleBasedStateMachine):
    """State machine that applies the same operations to two stores and compares all visible state."""

    sessions = Bundle("sessions")
    parts = st.sampled_from(["bank", "mail", "x/y"])

    def open(self):
        """Return a new empty store, which is compared with the memory store."""
        raise NotImplementedError

    @initialize()
    def begin(self):
        self.stores = [SharedMemory(), self.open()]
        self.forked, self.names, self.blobs = set(), count(), []
        self.workers = {"w1": "w1", "w2": "w2"}

    def teardown(self):
        for store in getattr(self, "stores", []):
            store.close()

    def both(self, ask):
        """Call `ask` with each store, check that the results or errors are equal, and return the first result."""
        answers = []
        for store in self.stores:
            try:
                answers.append(ask(store))
            except (MissingBlobError, SessionNotFoundError, VersionNotRetainedError) as error:
                answers.append((type(error), getattr(error, "oldest", None)))
        assert answers[0] == answers[1]
        return answers[0]

    def name(self):
        """Return a name that hasn't been used in any store."""
        return f"n{next(self.names)}"

    def blob(self):
        """Return the id of a new blob, and remember it for the comparison."""
        self.blobs.append(self.name())
        return self.blobs[-1]

    def head(self, sample):
        """Return the head of a session, or an empty head if the memory store doesn't contain the session."""
        stored = self.stores[0].get(sample.id)
        return stored[1] if stored else Head(-1, 0, {}, 0)

    @rule(target=sessions, names=st.sets(parts), owner=st.sampled_from(["", "bob"]))
    def create(self, names, owner):
        sample = session(owner=owner, labels={"owner": owner})
        mapping = {part: self.blob() for part in sorted(names)}
        self.both(lambda store: store.create([sample], mapping, {blob: blob.encode() for blob in mapping.values()}))
        return sample

    @rule(target=sessions, origin=sessions, version=st.integers(0, 5))
    def fork(self, origin, version):
        parts = self.both(lambda store: store.parts_at(origin.id, version))
        head = self.head(origin)
        sample = session(parent=ForkPoint(origin.id, version, head.index, head.last))
        if isinstance(parts, dict):
            self.both(lambda store: store.create([sample], parts, {}))
        self.forked.add(origin.id)
        return sample

    @rule(
        batch_sessions=st.lists(sessions, min_size=1, max_size=3),
        names=st.sets(parts),
        size=st.integers(0, 40),
        call_id=st.sampled_from([None, None, "c1", "c2", "ü"]),
        index_error=st.sampled_from([0, 0, 0, 1, -1]),
        epoch=st.sampled_from([0, 0, 0, 1]),
        grow=st.booleans(),
        release=st.booleans(),
    )
    def commit(self, *, batch_sessions, names, size, call_id, index_error, epoch, grow, release):
        """Send a batch of commits, most of them valid, then send it again, as a worker does after a lost answer.

        Args:
            index_error: Added to a record's index. If the index changes, the commit must be refused.
            epoch: Added to the lease's epoch. Unless this is 0, the commit must be refused.
            grow: Whether the version increases even if no part changes.
        """
        # By session: the index and the id of its last record in this batch.
        batch, ahead, batch_ids = [], {}, {}
        for sample in batch_sessions:
            head = self.head(sample)
            index = ahead[sample.id] = ahead.get(sample.id, head.index) + 1
            version = head.version + index - head.index - (0 if grow or names else index - head.index)
            new = {part: self.blob() for part in sorted(names)}
            record = Record(max(index + index_error, 0), version, call_id, self.name().encode())
            blobs = dict.fromkeys(new.values(), b"x" * size)
            after = head.last if index == head.index + 1 else batch_ids[sample.id]
            batch_ids[sample.id] = record.id
            batch.append(Commit(sample.id, head.epoch + epoch, record, new, blobs, 5000.0 + index, release, after))
        self.both(lambda store: store.commit(batch))
        self.both(lambda store: store.commit(batch))

    @rule(sample=sessions, version=st.integers(0, 6))
    def reset(self, sample, version):
        parts = self.both(lambda store: store.parts_at(sample.id, version))
        if isinstance(parts, dict):
            head = self.head(sample)
            record = Record(head.index + 1, head.version + 1, None, b"reset")
            self.both(lambda store: store.commit([Commit(sample.id, head.epoch, record, parts, after=head.last)]))

    @rule(sample=sessions, versions=st.integers(0, 4), size=st.integers(0, 100))
    def trim(self, sample, versions, size):
        self.both(lambda store: store.trim(sample.id, versions, size))

    @rule(sample=consumes(sessions))
    def delete(self, sample):
        self.both(lambda store: delete(store, [sample.id]))

    @property
    def leased(self):
        return hasattr(self.stores[1], "claim")

    @precondition(leased.fget)
    @rule(sample=sessions, worker=st.sampled_from(["w1", "w2"]))
    def claim(self, sample, worker):
        worker = self.workers[worker]
        answer = self.both(lambda store: claim(store, sample, worker))
        if isinstance(answer, Lease):
            self.both(lambda store: claim(store, sample, worker, answer))

    @precondition(leased.fget)
    @rule(worker=st.sampled_from(["w1", "w2"]), sample=sessions, epoch=st.integers(0, 2))
    def heartbeat_and_release(self, worker, sample, epoch):
        worker = self.workers[worker]
        self.both(lambda store: store.heartbeat(worker))
        self.both(lambda store: store.release(sample.id, worker, epoch))

    @precondition(leased.fget)
    @rule(worker=st.sampled_from(["w1", "w2"]))
    def holder_ended(self, worker):
        """End a worker and replace it by a new worker, because a worker that has ended never comes back."""
        ended, self.workers[worker] = self.workers[worker], f"{worker}-{self.name()}"
        self.both(lambda store: store.holder_ended(ended))

    def compare_session(self, session_id, version):
        self.both(lambda store: store.get(session_id))
        self.both(lambda store: store.records(session_id, -1, 1000))
        self.both(lambda store: store.record_of_call(session_id, "c1"))
        for each in range(version + 2):
            parts = self.both(lambda store, at=each: store.parts_at(session_id, at))
            blobs = list(parts.values()) if isinstance(parts, dict) else []
            self.both(lambda store, ids=blobs: store.blobs(ids))

    @invariant()
    def all_answers_are_equal(self):
        if not hasattr(self, "stores"):
            return
        for sample, version in self.both(lambda store: list(store.list(SessionQuery(None, {}, "", 1000)))):
            self.compare_session(sample.id, version)
            self.both(
                lambda store, of=sample.id: list(
                    store.list(SessionQuery("bob", {}, "", 1000, parent=of, newest_first=True))
                )
            )
        self.both(lambda store: list(store.list(SessionQuery(None, {}, "", 1000, newest_first=True))))
        for session_id in self.forked:
            self.both(lambda store, of=session_id: store.records(of, -1, 1000))
            self.both(lambda store, of=session_id: store.parts_at(of, 0))
            ancestors = self.both(
                lambda store, of=session_id: [replace(each, expires_at=0.0) for each in [store.ancestor(of)] if each]
            )
            assert ancestors or not self.stores[0].list(SessionQuery(None, {}, "", 1, parent=session_id))
        assert existing(self.stores[1], *self.blobs) == [blob for blob in self.blobs if blob in self.stores[0]._blobs]
        self.both(lambda store: store.count("bob"))

    @rule(now=st.sampled_from([1990.0, 2000.5, 4990.0, 5001.0]))
    def delete_expired(self, now):
        self.both(lambda store: sorted(delete_expired(store, now, 1000)))

    @rule(clock=st.sampled_from([1000.0, 1005.0, 1030.0, 5000.0, 100.0]))
    def count_time(self, clock):
        self.both(lambda store: store.count_time(clock))


def compare(new_store, examples, steps):
    """Apply random operations to stores and to the memory store, and compare the results.

    Args:
        new_store: The fixture's function; each call returns the opener of a new empty store.
        examples: Number of stores.
        steps: Maximum number of operations on each store.
    """

    class Opened(Comparison):
        def open(self):
            return new_store()()

    health = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    Opened.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=health
    )
    Opened.TestCase("runTest").runTest()


def test_random_operations_match_memory_store(new_store):
    compare(new_store, 15, 20)
