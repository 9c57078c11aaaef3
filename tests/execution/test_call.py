"""A call as a pure function: it takes a plan and a snapshot, and returns an outcome and the bytes of changed parts."""

import contextlib

import pytest
import serving
from serving import CATALOG, ledger

from toolpack_server.base.errors import ClassesChangedError, Interrupted, MissingBlobError, StateDamagedError
from toolpack_server.execution.call import call
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.failure import Failure
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.world import ExecutionContext

CODEC = Codec(CATALOG, serving.KEY, 2**20, serving.NO_VOLUMES)
PACKS = ("ledger", "vault")
RUNTIME = SessionRuntime(CATALOG.functions(PACKS), 30.0)


def snapshot(entries=(5,), *, live=False):
    """Return a ledger and a vault as bytes, and with `live` as objects too."""
    built = {"ledger": ledger.LedgerEnvironment(), "vault": CATALOG.toolpacks["vault"].build({})}
    built["ledger"].ledger.entries.extend(entries)
    blobs_by_part = {
        part: blob
        for toolpack, environment in built.items()
        for part, blob in CODEC.seal_all(CODEC.freeze_parts(toolpack, environment, contextlib.nullcontext())).items()
    }
    objects = {part: CODEC.decode(part, *blob) for part, blob in blobs_by_part.items()} if live else {}
    ids, blobs = ({part: blob[index] for part, blob in blobs_by_part.items()} for index in (0, 1))
    return Snapshot(ids, blobs, objects)


def run_call(function, at=None, max_bytes=2**20, interruptible=None, codec=CODEC, **kwargs):
    return call(
        RUNTIME.plan(function, kwargs),
        at or snapshot(),
        ExecutionContext(codec, max_bytes, interruptible or contextlib.nullcontext()),
    )


def inner(function, **args):
    return {"$call": {"function": function, "args": args}}


@pytest.mark.parametrize("live", [True, False])
def test_a_change_is_only_in_the_next_snapshot(live):
    before = snapshot(live=live)
    bytes_before = dict(before.blobs)
    outcome = run_call("add", before, amount=2)
    assert (outcome.result, outcome.failure, outcome.changes) == (b"7", None, True)
    (part,) = outcome.blobs
    assert part.startswith("ledger")
    assert CODEC.decode(part, *outcome.blobs[part]).ledger.entries == [5, 2]
    assert outcome.live[part].ledger.entries == [5, 2]
    assert before.blobs == bytes_before
    assert part not in before.live  # the next call gets this live object, or restores it from the bytes
    assert set(outcome.live) == {part}


def test_a_read_creates_no_snapshot_and_no_version():
    outcome = run_call("total")
    assert (outcome.result, outcome.changes, outcome.blobs) == (b"5", False, {})
    assert run_call("echo", value=inner("total")).changes
    assert run_call("total", colour=1).changes is False


FAILING = [
    ("add_then", {"how": "raise"}, Failure.RAISED, "LookupError: half of it is done"),
    ("add_then", {"how": "exit"}, Failure.RAISED, "SystemExit: out"),
    ("add_then", {"how": "interrupt"}, Failure.RAISED, "KeyboardInterrupt: "),
    ("add_then", {"how": "lambda"}, Failure.RAISED, "SnapshotError: "),
    ("add_then", {"how": "grow"}, Failure.TOO_LARGE, "TooLargeError: the environment of 'ledger' "),
    ("add_and_return", {"what": "object"}, Failure.RAISED, "ResultError: "),
    ("add_and_return", {"what": "much"}, Failure.TOO_LARGE, "TooLargeError: the result "),
    ("add", {"amount": "x"}, Failure.ARGUMENTS, "ValidationError: "),
    ("add", {"amount": inner("take_gold", amount=11)}, Failure.RAISED, "ValueError: the vault is empty"),
    ("add", {"amount": inner("none")}, Failure.NOT_FOUND, "ToolNotFoundError: "),
    ("none", {}, Failure.NOT_FOUND, "ToolNotFoundError: "),
]


@pytest.mark.parametrize(("function", "kwargs", "failure", "error"), FAILING)
def test_a_failed_call_has_no_snapshot_and_no_version(function, kwargs, failure, error):
    before = snapshot(live=True)
    outcome = run_call(function, before, **kwargs)
    assert outcome.failure.why == failure
    assert outcome.failure.text.startswith(error)
    assert (outcome.result, outcome.changes, outcome.blobs, outcome.live) == (None, False, {}, {})
    # Half-made changes are gone; the bytes are unchanged.
    assert run_call("total", before).result == b"5"


def test_only_invalid_arguments_are_listed():
    assert [problem["loc"] for problem in run_call("add", amount="x", colour=1).failure.errors] == [
        ["amount"],
        ["colour"],
    ]
    assert run_call("add_then", how="raise").failure.errors is None
    many = run_call("add", **{f"wrong {number}": 1 for number in range(1000)})
    assert (many.failure.why, many.failure.errors) == (Failure.ARGUMENTS, [])


@pytest.mark.parametrize("function", ["add", "total"])
def test_an_unusable_snapshot_refuses_the_call(function):
    def refused(at, codec=CODEC):
        return run_call(function, at, codec=codec, **({"amount": 1} if function == "add" else {}))

    at = snapshot()
    at.blobs = {part: blob[:-1] for part, blob in at.blobs.items()}
    with pytest.raises(StateDamagedError):
        refused(at)
    with pytest.raises(StateDamagedError):
        refused(snapshot(), Codec(CATALOG, b"another key of sixteen", 2**20, serving.NO_VOLUMES))

    class Missing(dict):
        def __missing__(self, part):
            raise MissingBlobError(part)

    at.blobs = Missing()
    with pytest.raises(MissingBlobError):
        refused(at)


def test_a_snapshot_of_an_unloaded_toolpack_is_refused():
    with pytest.raises(ClassesChangedError, match="'gone' is not loaded any more"):
        CODEC.decode("gone/field", "id", b"")


def test_only_the_functions_own_code_can_be_interrupted():
    inside = []

    @contextlib.contextmanager
    def block():
        inside.append("in")
        yield
        inside.append("out")
        raise Interrupted

    outcome = run_call("add", interruptible=block(), amount=1)
    assert inside == ["in", "out"]
    assert (outcome.failure.why, outcome.blobs) == (Failure.RAISED, {})
    assert run_call("add", interruptible=block(), amount="x").failure.why == Failure.ARGUMENTS
    assert inside == ["in", "out"]  # arguments are validated outside


def test_a_plan_has_reach_deadline_and_read_only_flag():
    plan = RUNTIME.plan("add", {"amount": inner("take_gold", amount=inner("total"))}, 100)
    assert (plan.toolpack, plan.read_only, plan.timeout_seconds) == ("ledger", False, 30)
    assert plan.footprint == {"ledger": {"ledger"}, "vault": {"vault"}}
    assert RUNTIME.plan("total", {}).read_only
    assert not RUNTIME.plan("none", {}).read_only
    assert [RUNTIME.plan("add_and_spin", {}, timeout).timeout_seconds for timeout in (None, 0.1, 9)] == [0.3, 0.1, 0.3]
    assert RUNTIME.plan("none", {}).toolpack == ""
    assert RUNTIME.plan("get_log", {}).footprint == {"vault": {"vault"}}
    assert RUNTIME.plan("echo", {"value": 1}).footprint == {}
    halves = SessionRuntime(CATALOG.functions(("halves",)), 30.0)
    assert halves.plan("put_right", {"shelf": inner("get_left")}).footprint == {"halves": {"left", "right"}}
    assert halves.plan("pass_on", {"value": inner("get_left")}).read_only
    assert not halves.plan("pass_on", {"value": inner("get_right")}).read_only
