"""Random histories of sessions, compared with a model."""

import json
import sys
import tempfile
from unittest import mock

import harbor
import pytest
import serving
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from serving import open_store

from toolpack_server.cli.requests import local
from toolpack_server.features.evaluation.tasks.atif import atif
from toolpack_server.features.evaluation.tasks.export import participant_view
from toolpack_server.protocol.senders import AGENT
from toolpack_server.rpc.caller import Caller


def inner(function, **args):
    return {"$call": {"function": function, "args": args}}


class Sessions(RuleBasedStateMachine):
    """A random history of sessions, and its model: a list of the ledger's entries after each version."""

    isolation = "thread"
    sessions = Bundle("sessions")

    def benches(self, turns):
        """Return the server for all requests. Subclasses return several workers that are used like one."""
        del turns
        return serving.Bench(cache_bytes=100_000)

    @initialize(target=sessions, turns=st.randoms(use_true_random=False))
    def start(self, turns):
        with mock.patch.object(serving, "isolation", self.isolation):
            self.bench = self.benches(turns)
        self.histories = {}
        self.traces = {}
        return self._opened(self.bench.create(), [])

    def _opened(self, session_id, entries):
        self.histories[session_id] = [entries]
        self.traces[session_id] = 0
        return session_id

    @rule(session=sessions, amount=st.integers(-5, 2**70))
    def change(self, session, amount):
        history = self.histories[session]
        entries = [*history[-1], amount]
        assert self.bench.result(session, "add", amount=amount) == sum(entries)
        history.append(entries)
        self.traces[session] += 1

    @rule(session=sessions)
    def read(self, session):
        assert self.bench.result(session, "total") == sum(self.histories[session][-1])
        self.traces[session] += 1

    @rule(session=sessions, how=st.sampled_from(["raise", "exit", "lambda"]))
    def fail(self, session, how):
        assert self.bench.call(session, "add_then", how=how)["error"] is not None
        self.traces[session] += 1

    @rule(session=sessions, amount=st.integers(0, 3))
    def fail_inside(self, session, amount):
        nested = inner("add", amount=amount)
        assert self.bench.call(session, "add_then", how=nested)["error"].startswith("ValidationError: ")
        self.traces[session] += 1

    @rule(session=sessions, amount=st.integers(0, 3))
    def change_twice_in_one_call(self, session, amount):
        history = self.histories[session]
        first = [*history[-1], amount]
        self.bench.result(session, "add", amount=inner("add", amount=amount))
        history.append([*first, sum(first)])
        self.traces[session] += 1

    @rule(session=sessions, data=st.data())
    def reset(self, session, data):
        history = self.histories[session]
        version = data.draw(st.integers(0, len(history) - 1))
        reset = self.bench.rpc("reset_session", session_id=session, version=version)
        assert reset["version"] == len(history)
        history.append(history[version])
        self.traces[session] += 1

    @rule(target=sessions, session=sessions, data=st.data(), count=st.integers(1, 2))
    def fork(self, session, data, count):
        history = self.histories[session]
        version = data.draw(st.integers(0, len(history) - 1))
        forks = self.bench.rpc("fork_session", session_id=session, version=version, count=count)
        return multiple(*(self._opened(fork["session_id"], history[version]) for fork in forks))

    @rule(session=sessions, amount=st.integers(0, 9))
    def refuse(self, session, amount):
        wrong = {"expected_version": len(self.histories[session])}
        with pytest.raises(serving.RpcError):
            self.bench.call(session, "add", wrong, amount=amount)

    @invariant()
    def every_session_matches_its_history(self):
        for session, history in getattr(self, "histories", {}).items():
            entries = self.bench.rpc("get_environment", session_id=session, pointer="/ledger/ledger/entries")
            assert entries == history[-1]
            assert self.bench.version(session) == len(history) - 1

    def teardown(self):
        if not hasattr(self, "histories"):
            return
        for session, history in self.histories.items():
            trace = self.bench.rpc("get_trace", session_id=session, limit=1000)
            assert [record["index"] for record in trace] == list(range(self.traces[session]))
            for version, entries in enumerate(history):
                environment = self.bench.rpc("get_environment", session_id=session, version=version)
                assert json.dumps(environment["ledger"]["ledger"]["entries"]) == json.dumps(entries)
        self._check_trajectories()
        self.bench.close()

    def _check_trajectories(self):
        send, records = local(self.bench.service, Caller()), []
        for session in self.histories:
            view = self.bench._run(participant_view(send, session, AGENT))
            records.append(atif(view.session, view.messages, view.tools, {}))
            path = self.bench.rpc("get_trace", session_id=session, limit=1000, path=True)
            calls = [record for record in path if record["kind"] == "call"]
            steps = [step for step in records[-1]["steps"] if "tool_calls" in step]
            assert [step["tool_calls"][0]["arguments"] for step in steps] == [call["kwargs"] for call in calls]
            copied = [step.get("is_copied_context", False) for step in steps]
            assert copied == [call["session_id"] != session for call in calls]
        assert harbor.errors(records) == []


class MovingSessions(Sessions):
    """A random history on two servers with two workers each. Each request goes to any of the workers."""

    def benches(self, turns):
        folder = tempfile.TemporaryDirectory()
        self.folder = folder.cleanup
        stores = [open_store(f"sqlite:///{folder.name}/sessions.db", exclusive=False) for _ in range(2)]
        return serving.moving(turns.choice, *stores, cache_bytes=100_000)

    def teardown(self):
        super().teardown()
        if hasattr(self, "folder"):
            self.folder()


TestRandomHistoriesOfMovingSessions = pytest.mark.heavy(MovingSessions.TestCase)
TestRandomHistoriesOfMovingSessions.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)

TestRandomHistories = Sessions.TestCase
TestRandomHistories.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


if sys.platform == "linux":

    class SessionsInProcesses(Sessions):
        """A random history with functions in executors."""

        isolation = "process"

    class MovingSessionsInProcesses(MovingSessions):
        """A random history on several workers, with functions in executors."""

        isolation = "process"

    TestRandomHistoriesOfMovingSessionsInProcesses = pytest.mark.long(MovingSessionsInProcesses.TestCase)
    TestRandomHistoriesOfMovingSessionsInProcesses.settings = settings(
        max_examples=4, stateful_step_count=20, deadline=None
    )

    TestRandomHistoriesInProcesses = pytest.mark.long(SessionsInProcesses.TestCase)
    TestRandomHistoriesInProcesses.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
