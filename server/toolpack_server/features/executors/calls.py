"""Transport of calls to an executor and back, and the executor's cache of environments.

An executor keeps the environments of its last calls as objects, so that the next call in a session needn't decode them.
The worker decides which of these objects are up to date: its request lists the parts of environments that the executor
should take from its cache, and contains the bytes of the other parts. If the cache has dropped a part, the executor
asks for the part's bytes. The worker checks each answer.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from typing_extensions import override

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import MAX_SHOWN, ResultError, shown
from toolpack_server.base.terminal import printable
from toolpack_server.execution.call import Outcome, call_steps
from toolpack_server.execution.codec import Codec
from toolpack_server.execution.failure import OF_CALLS, CallFailure, Failure
from toolpack_server.execution.operations import (
    BuildEnvironment,
    ExportVolumes,
    ParseEnvironment,
    PatchVolumes,
    RunCall,
)
from toolpack_server.execution.parts import parts_in_use, toolpack_of
from toolpack_server.execution.plan import Plan
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.execution.read_only_checks import ReadOnlyCheck
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.runtime import SessionRuntime
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import Stored, stored_chains
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.executors.channel import Frame
from toolpack_server.features.executors.transport import (
    Ask,
    BuildTransport,
    BytesTransport,
    ExportTransport,
    JsonPieceTransport,
    LazyParts,
    Transport,
    check_answer,
    dump_policy,
    largest_piece,
    load_policy,
    part_ids,
    unseal_part,
)
from toolpack_server.functions.content import check_content
from toolpack_server.functions.steps import run_steps
from toolpack_server.functions.tracebacks import MAX_CHARACTERS, MAX_PLACE
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.volumes.volume import SLOTS, is_piece

LIVE_BYTES = 4 * 2**20  # size of an executor's cache, in bytes of snapshots; the objects need 4 to 8 times this memory
RUNTIMES = 256  # maximum number of `SessionRuntime`s that an executor caches
COMPARISON_STARTS = "/comparing"  # sent in place of a part's name, to tell the worker that a read-only check starts
CUT_BYTES = 128  # maximum size of the placeholder for a result that was cut


class ProcessReference(NamedTuple):
    """Reference to an object in an executor's cache: a part or a volume that equals the stored bytes.

    Attributes:
        process: The number of the executor.
        tag: The key in the executor's cache, which is the number of the call that left the object there.
        pieces: For a volume, the blob ids of its pieces. The reference is stale if the session's pieces have other ids.
    """

    process: int
    tag: int
    pieces: tuple[str, ...] = ()


class CallTransport(Transport[Outcome]):
    """Transport of one call. It prefers the executor whose cache contains the session's environments."""

    _operation: RunCall
    _tags = itertools.count()  # numbers of calls, as keys of executors' caches

    def __init__(self, operation: RunCall) -> None:
        self._operation = operation
        self._plan, self._snapshot = operation.plan, operation.snapshot
        self._comparisons = 0
        snapshot, footprint = operation.snapshot, operation.plan.footprint
        self._parts = tuple(part for part in snapshot.parts if toolpack_of(part) in footprint)
        self._used = [
            part for toolpack, fields in footprint.items() for part in parts_in_use(self._parts, toolpack, fields)
        ]
        references = {part: snapshot.live.pop(part, None) for part in self._used}
        self._live: dict[str, ProcessReference] = {part: ref for part, ref in references.items() if ref is not None}
        self._volumes = [stored for toolpack in footprint for stored in stored_chains(self._parts, toolpack)]
        for stored in self._volumes:
            held = snapshot.live.pop(stored.live, None)
            if held is not None and held.pieces == tuple(snapshot.parts[part] for part in stored.parts):
                self._live[stored.live] = held
        self._tag = next(self._tags)
        if self._live:
            self.preferred = next(iter(self._live.values())).process

    @override
    def write(self, codec: Codec, process: int) -> Frame:
        """Build the request, with the bytes of the parts that aren't in the executor's cache.

        `process` is the number of the reserved executor, which isn't always the preferred executor.
        """
        plan = self._plan
        held = {part: reference.tag for part, reference in self._live.items() if reference.process == process}
        missing = [part for part in self._used if part not in held]
        head = {
            "toolpacks": self._operation.toolpacks,
            "function": plan.function,
            "kwargs": Fragment(self._operation.sent),
            "offered": None if plan.runtime.offered is None else sorted(plan.runtime.offered),
            "distrusted": plan.runtime.distrusted,
            "read_only": plan.read_only,
            "compares": plan.compares,
            "tracebacks": plan.tracebacks,
            "parts": part_ids(self._snapshot, self._parts),
            "sent": missing,  # the names of the parts in the frame's pieces
            "cached": held,
            "tag": self._tag,
            # As JSON text, because `dumps` allows no integers above 64 bits beside a `Fragment`, but a pinned time
            # after the year 2554 is such an integer.
            "policy": plan.policy and Fragment(dumps(dump_policy(plan.policy))),
        }
        pieces = [unseal_part(codec, self._snapshot, part) for part in missing]
        self._operation.start()
        return Frame(head, pieces)

    @override
    def supply(self, need: Any, codec: Codec) -> Frame:
        """Return a part that the function uses outside its footprint, or that the executor's cache has dropped.

        The executor also "asks" before it begins a read-only check, so that the worker knows of the start.
        """
        if need == COMPARISON_STARTS:
            check_answer(self._plan.compares and self._comparisons <= len(self._plan.nested))
            self._comparisons += 1
            self._plan.comparing()
            return Frame({}, [])
        check_answer(need in self._snapshot.parts)
        return Frame({}, [unseal_part(codec, self._snapshot, need)])

    @override
    def allows(self, sizes: Sequence[int], context: ExecutionContext) -> bool:
        """Return whether an answer can have pieces of these sizes: results, then the parts that the call changed.

        A read-only call changes nothing, so its answer contains only results.
        """
        nested, parts = len(self._plan.nested), 0 if self._plan.read_only else len(self._parts)
        texts = 2 * context.max_result_bytes + nested * CUT_BYTES  # the result, and the results of all nested calls
        pieces, volume_bytes = 0, 0
        if self._volumes and not self._plan.read_only:
            pieces, volume_bytes = SLOTS * len(self._volumes), len(self._volumes) * largest_piece(context.codec)
        max_bytes = texts + parts * context.codec.max_bytes + volume_bytes
        return len(sizes) <= 1 + nested + parts + pieces and sum(sizes) <= max_bytes

    @override
    def read(self, answer: Frame, context: ExecutionContext, process: int) -> Outcome:
        """Check the answer and return the call's outcome, with sealed parts.

        `outcome.live` refers to the objects that the executor `process` keeps in its cache for the next call.
        """
        plan, head = self._plan, answer.head
        changed, live, returned = head["blobs"], head["live"], head["nested"]
        volumes = {stored.live: stored for stored in self._volumes}
        parts = {*self._parts, *(part for stored in self._volumes for part in stored.possible)}
        check_answer({*changed} <= parts and {*live} <= {*self._parts, *volumes})
        check_answer(returned in range(len(plan.nested) + 1))
        result, nested = answer.pieces[0], answer.pieces[1 : 1 + returned]
        payloads = answer.pieces[1 + returned :]
        check_answer(len(result) <= context.max_result_bytes)
        check_answer(sum(map(len, nested)) <= context.max_result_bytes + returned * CUT_BYTES)
        check_answer(
            all(
                len(payload) <= (largest_piece(context.codec) if is_piece(part) else context.codec.max_bytes)
                for part, payload in zip(changed, payloads, strict=True)
            )
        )
        for text in nested:
            orjson.loads(text)  # check that it is JSON, like the result below
        outcome = Outcome(comparison=self._comparison(head["comparison"]), nested=nested)
        if head["failure"] is None:
            _check_result(result, content=plan.content)
            outcome.result, outcome.changes = result, not plan.read_only
            sealed = zip(changed, payloads, strict=True)
            outcome.blobs = {part: context.codec.seal(part, payload) for part, payload in sealed}
            outcome.live = dict.fromkeys(live, ProcessReference(process, self._tag))
            if plan.policy is not None:
                outcome.digests = _digests(head["digests"], changed, plan.policy)
            outcome.changed = _counts(head["changed"], self._volumes)
        else:
            outcome.failure = _failure(head, plan, context.max_result_bytes)
        now = {**self._snapshot.parts, **{part: blob_id for part, (blob_id, _) in outcome.blobs.items()}}
        for name in {*live} & volumes.keys():
            pieces = tuple(now[part] for part in volumes[name].possible if part in now)
            outcome.live[name] = ProcessReference(process, self._tag, pieces)
        return outcome

    def _comparison(self, members: Any) -> ReadOnlyCheck | None:
        """Validate and return a call's read-only check. Raise the same errors as `Transport.read`."""
        check_answer((members is not None) == self._plan.compares)
        if members is None:
            return None
        seconds, broken = members
        check_answer(isinstance(seconds, float) and seconds >= 0)
        if broken is None:
            return ReadOnlyCheck(seconds)
        toolpack, function, change = broken
        check_answer((toolpack, function) in self._plan.read_only_functions() and isinstance(change, str))
        return ReadOnlyCheck(seconds, (toolpack, function, printable(shown(change))))

    @classmethod
    @override
    def make_handler(
        cls, kind: type[RunnerOperation[Outcome]], context: ExecutionContext, ask: Ask
    ) -> Callable[[Frame], Frame]:
        del kind
        return _Calls(context, ask).serve


class _Calls:
    """Runs functions in an executor, and caches the most recently used environments."""

    def __init__(self, context: ExecutionContext, ask: Ask) -> None:
        self._context = context
        self._ask = ask
        self._live = BoundedCache[tuple[int, str], tuple[Any, int]](LIVE_BYTES, lambda live: live[1])
        self._runtime = lru_cache(maxsize=RUNTIMES)(self._make_runtime)

    def serve(self, request: Frame) -> Frame:
        """Run a request's function, and return the answer.

        Keep the environments that the function used in the cache.
        """
        head, context = request.head, self._context
        offered = None if head["offered"] is None else frozenset(head["offered"])
        plan = self._runtime(tuple(head["toolpacks"]), offered).plan(head["function"], head["kwargs"])
        # Only the worker knows which functions were caught, in any executor, changing an environment although they are
        # declared read-only.
        plan.trusted -= frozenset(head["distrusted"])
        plan.read_only, plan.compares, plan.tracebacks = head["read_only"], head["compares"], head["tracebacks"]
        plan.comparing = self._report_comparison
        plan.policy = head["policy"] and load_policy(head["policy"])
        blobs = dict(zip(head["sent"], request.pieces, strict=True))
        snapshot = Snapshot(head["parts"], LazyParts(self._ask, blobs))
        sizes = {part: len(blob) for part, blob in blobs.items()}
        for part, tag in head["cached"].items():
            live = self._live.pop((tag, part))  # the call can change this object, so the cache must not keep it
            if live is not None:
                snapshot.live[part], sizes[part] = live
        outcome = run_steps(call_steps(plan, snapshot, context), context.interruptible)
        sizes.update({part: len(blob) for part, blob in snapshot.blobs.items()})
        sizes.update({part: len(blob) for part, (_, blob) in outcome.blobs.items()})
        unused = {(head["cached"][part], part): (live, sizes[part]) for part, live in snapshot.live.items()}
        used = {(head["tag"], part): (live, sizes.get(part, 0)) for part, live in outcome.live.items()}
        self._live.put_all({**unused, **used})  # the last environment stays, even if it exceeds the cache's size
        comparison = outcome.comparison
        answer = {
            "failure": outcome.failure and outcome.failure.members(),
            "traceback": outcome.failure and outcome.failure.traceback,
            "raised_at": outcome.failure and outcome.failure.raised_at,
            "comparison": comparison and [comparison.seconds, comparison.broken],
            "nested": len(outcome.nested),
            "blobs": [*outcome.blobs],
            "live": [*outcome.live],
            "digests": outcome.digests,
            "changed": outcome.changed or {},
        }
        return Frame(answer, [outcome.result or b"", *outcome.nested, *(blob for _, blob in outcome.blobs.values())])

    def _report_comparison(self) -> None:
        self._ask(COMPARISON_STARTS)

    def _make_runtime(self, toolpacks: tuple[str, ...], offered: frozenset[str] | None) -> SessionRuntime:
        return SessionRuntime(self._context.codec.catalog.functions(toolpacks), timeout_seconds=0, offered=offered)


def _digests(values: Any, parts: Iterable[str], policy: ExecutionPolicy) -> dict[str, Any]:
    """Validate and return the digests that the execution policy computed for changed parts.

    Raise the same errors as `Transport.read`.
    """
    check_answer(isinstance(values, dict) and values.keys() == {*parts})
    return {part: policy.digest_type.validate_python(value) for part, value in values.items()}


def _counts(counts: Any, volumes: Sequence[Stored]) -> dict[str, int]:
    """Validate and return the number of changes in each volume. Raise the same errors as `Transport.read`."""
    check_answer(isinstance(counts, dict) and counts.keys() <= {stored.name for stored in volumes})
    check_answer(all(type(count) is int and count >= 0 for count in counts.values()))
    return dict(counts)


def _check_result(result: bytes, *, content: bool) -> None:
    """Check the JSON of a call's result. Raise a `ValueError` if it is malformed; `content` demands MCP blocks."""
    orjson.loads(result)  # the bytes are inserted into responses and records, so they must be JSON
    if content:
        try:
            check_content(result)
        except ResultError as error:
            raise ValueError(str(error)) from None


def _failure(head: Mapping[str, Any], plan: Plan, max_bytes: int) -> CallFailure:
    """Validate and return a call's failure, whose texts the executor has already cut.

    Raise the same errors as `Transport.read`.
    """
    members, traceback, raised_at = head["failure"], head["traceback"], head["raised_at"]
    kind, message, why = members["kind"], members["message"], Failure(members["why"])
    errors, similar = members["errors"], members["similar"]
    check_answer(isinstance(kind, str) and isinstance(message, str) and why in OF_CALLS)
    check_answer(len(kind) + len(message) <= max_bytes + MAX_SHOWN)  # a cut text has a note about this at its end
    check_answer(errors is None or (isinstance(errors, list) and len(dumps(errors)) <= max_bytes))
    check_answer(similar is None or {*similar} <= plan.runtime.functions.keys())
    check_answer(traceback is None or (isinstance(traceback, str) and len(traceback) <= 2 * MAX_CHARACTERS))
    check_answer(raised_at is None or (isinstance(raised_at, str) and len(raised_at) <= MAX_PLACE))
    return CallFailure(kind, message, why, errors, similar, traceback=traceback, raised_at=raised_at)


class _Transports(dict[type[RunnerOperation[Any]], type[Transport[Any]]]):
    """Transports by class of operation. The default for other classes depends on the form of the result."""

    def __missing__(self, kind: type[RunnerOperation[Any]]) -> type[Transport[Any]]:
        return BytesTransport if kind.shape is None else Transport


TRANSPORTS = _Transports(
    {
        RunCall: CallTransport,
        BuildEnvironment: BuildTransport,
        ParseEnvironment: BuildTransport,
        ExportVolumes: ExportTransport,
        PatchVolumes: JsonPieceTransport,
    }
)
"""The transport of each operation. Operations that aren't listed use `BytesTransport` or `Transport`."""
