"""Hooks of features before and after operations: they may answer, refuse, or alter the answer, but not the record."""

import pytest
from serving import Bench, RpcError

from toolpack_server.base.errors import InvalidParamsError, TooLargeError
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import CallFailure
from toolpack_server.sessions.operation import OperationHook
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.installed import load_features

HEARD = b'"something else"'


class Faults(OperationHook):
    """Hook that changes the outcome of calls in sessions with the label `faults`. The argument `value` says how."""

    def __init__(self):
        self.asked = []

    def concerns(self, session):
        self.asked.append(session.id)
        return "faults" in session.labels

    def before(self, operation, state, start_clock):  # noqa: ARG002 - a hook's signature
        match operation.record_kind == "call" and operation.request.kwargs.get("value"):
            case "answer":
                return Outcome(HEARD)
            case "refuse":
                raise InvalidParamsError("Not now.")
            case "instead":
                operation.outcome = Outcome(failure=CallFailure.of(TooLargeError("Too much.")))
        return None

    def after(self, operation, state, change):
        change.private["seen"] = change.hook_state[self] = state.hook_state.get(self, 0) + 1
        if operation.record_kind == "call" and operation.request.kwargs.get("value") == "hear":
            change.answer = Outcome(HEARD)
        if operation.record_kind == "call" and operation.request.kwargs.get("value") == "fail":
            change.answer = Outcome(failure=CallFailure.of(ConnectionError("The line is dead.")))


class FaultsFeature(Feature):
    name = "faults"
    operation_hooks = (lambda _context: Faults(),)


@pytest.fixture
def bench():
    with Bench(features=[*load_features(), FaultsFeature]) as bench:
        yield bench


@pytest.fixture
def faults(bench):
    return bench.service.feature(Faults)


def trace(bench, session_id):
    return bench.rpc("get_trace", session_id=session_id)


def test_an_answer_before_the_call_is_not_recorded(bench):
    session_id = bench.create(labels={"faults": "yes"})
    assert bench.call(session_id, "echo", value="answer") == {"result": "something else", "error": None}
    with pytest.raises(RpcError, match="Not now"):
        bench.call(session_id, "echo", value="refuse")
    assert trace(bench, session_id) == []


def test_an_outcome_that_replaces_the_functions_is_recorded(bench):
    session_id = bench.create(labels={"faults": "yes"})
    envelope = bench.call(session_id, "echo", value="instead")
    assert envelope == {"result": "", "error": "TooLargeError: Too much."}
    (record,) = trace(bench, session_id)
    assert (record.get("failure"), record["error"], record["version"]) == ("too_large", envelope["error"], 0)


@pytest.mark.parametrize(
    ("how", "expected"), [("hear", ("something else", None)), ("fail", ("", "ConnectionError: The line is dead."))]
)
def test_an_altered_answer_is_repeated_but_not_recorded(bench, how, expected):
    session_id = bench.create(labels={"faults": "yes"})
    answers = [bench.call(session_id, "echo", {"call_id": "once"}, value=how) for _ in range(2)]
    assert [(answer["result"], answer["error"]) for answer in answers] == [expected] * 2
    (record,) = trace(bench, session_id)
    assert (record["error"], record.get("failure")) == (None, None)


def test_a_hook_is_created_once_per_session_with_its_state(bench, faults):
    mine, other = bench.create(labels={"faults": "yes"}), bench.create()
    for session_id in (mine, other, mine, other, mine):
        bench.call(session_id, "add", amount=1)
    assert sorted(faults.asked) == sorted([mine, other])
    records = bench.store.records(mine, -1, 10)
    lines = [bench.service.context.records.read(mine, record)[1] for record in records]
    assert lines == [b'{"seen":1}', b'{"seen":2}', b'{"seen":3}']
