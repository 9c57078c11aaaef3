"""Sample sessions and commits for the contract tests, and helpers that call a store."""

from dataclasses import replace
from itertools import count

import pytest

from toolpack_server.base.errors import MissingBlobError
from toolpack_server.stores.base import Commit, ForkPoint, Record, StoredSession

numbers = count()


def session(**changes):
    """Return a new session with default values, changed by `changes`."""
    number = next(numbers)
    plain = StoredSession(
        id=f"s{number:035}",
        agent_key=f"key{number}",
        owner="alice",
        recipe=b'[["bank","mail"],null]\n[{},{}]',
        labels={"run": "1"},
        ttl_seconds=60.5,
        created_at=1000.25,
        expires_at=2000.5,
        details='{"seed":"é"}'.encode(),
    )
    return replace(plain, **changes)


def commit(sample, index, *, version=None, call_id=None, body=b"{}", epoch=0, **more):
    """Return a commit of one record. The default version is the record's index plus one."""
    version = index + 1 if version is None else version
    record = Record(index, version, call_id, body, record_id(sample, index))
    return Commit(sample.id, epoch, record, **{"after": record_id(sample, index - 1), **more})


def record_id(sample, index):
    """Return the id of a record in sample commits; "" before the first record."""
    return f"{sample.id}.{index}" if index >= 0 else ""


def change(sample, index, blob, *, part="bank", **more):
    """Return a commit that gives a part a new blob."""
    return commit(sample, index, parts={part: blob}, blobs={blob: f"body of {blob}".encode()}, **more)


def claim(store, sample, holder, *dead):
    """Claim the lease of one session. Skip the test if the store has no leases."""
    if not hasattr(store, "claim"):
        pytest.skip("a store of one process has no leases")
    (answer,) = store.claim([sample.id], holder, dead)
    return answer


def fork_of(sample, version=0, last=-1, **more):
    """Return a new session that is a fork. `last` is the index of its parent's last record."""
    return session(parent=ForkPoint(sample.id, version, last, record_id(sample, last)), **more)


def delete(store, session_ids):
    """Delete sessions, clean up their data, and return the ids of the deleted sessions."""
    deleted = store.delete(session_ids)
    store.clean_up()
    return deleted


def delete_expired(store, now, limit, busy=()):
    """Delete expired sessions, clean up their data, and return their ids."""
    deleted = store.delete_expired(now, limit, busy)
    store.clean_up()
    return deleted


def existing(store, *blobs):
    """Return the blobs that the store contains, out of `blobs`."""
    stored = []
    for blob in blobs:
        try:
            store.blobs([blob])
        except MissingBlobError:
            continue
        stored.append(blob)
    return stored


def use_and_delete(store):
    """Create, change, fork and delete sessions. Afterwards the store must contain the same data as before."""
    many = [session(owner=owner, recipe=owner.encode()) for owner in ("", "bob", "bob")]
    store.create(many, {"bank": "b"}, {"b": b"x"})
    store.create(many, {"bank": "again"}, {"again": b"x"})
    for each in many:
        claim(store, each, "worker")
        store.commit([change(each, index, f"{each.id}-{index}", call_id=str(index), epoch=1) for index in range(5)])
        store.commit([commit(each, 5, parts={"mail": "b"}, epoch=1), commit(each, 9, epoch=1)])
    store.trim(many[0].id, 1, 1000)
    forks = [fork_of(many[0], 5, 4), fork_of(many[0], 5, 4)]
    store.create(forks, store.parts_at(many[0].id, 5), {})
    assert len(delete(store, [each.id for each in [forks[0], *many, forks[1]]])) == 5


def ancestor(store, sample):
    """Return a session that might be kept for its forks. Its stored `expires_at` means nothing, so replace it."""
    stored = store.ancestor(sample.id)
    return stored and replace(stored, expires_at=sample.expires_at)


def is_fully_deleted(store, sample):
    """Return whether the store contains neither the session nor its records."""
    return ancestor(store, sample) is None and store.records(sample.id, -1, 10) == []
