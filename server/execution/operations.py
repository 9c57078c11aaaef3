"""The operations of the core: running a function, and making, showing and exporting environments.

The rule: each is one class here and one entry of `OPERATIONS`; features add theirs. Only a call says itself how it
travels, as executors keep the environments that it leaves; of the others the fields are declared. What an executor
answers may still be wrong when it has the right form, and then only its own session is.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import orjson
from pydantic import TypeAdapter
from typing_extensions import override

from server.base.cache import BoundedCache
from server.base.errors import MAX_SHOWN, CrashedError, ResultError, shown
from server.base.terminal import printable
from server.execution.call import Outcome, call, call_steps
from server.execution.codec import Codec, PlainCodec
from server.execution.declared import Declared, DeclaredLong, DeclaredText
from server.execution.failure import OF_CALLS, CallFailure, Failure
from server.execution.initial import Built, build, parse
from server.execution.parts import toolpack_of, wanted
from server.execution.plan import Plan
from server.execution.runner import (
    Ask,
    AskedParts,
    Frame,
    RunnerOperation,
    check_answer,
    known_parts,
    opened,
)
from server.execution.runtime import SessionRuntime
from server.execution.views import Pointed, contents, export, patch, pointed, view, view_without_volumes
from server.execution.volumes import Stored, stored_volumes
from server.execution.world import Means, PromiseCheck, Snapshot
from server.functions.content import check_content
from server.functions.leftovers import Watch
from server.functions.pins import Pin
from server.functions.steps import Steps, run_steps
from server.functions.tracebacks import MAX_CHARACTERS
from server.jsonio.strict import Fragment, dumps
from server.snapshots.digest import Entries
from server.volumes.volume import SLOTS, Limits, is_piece

LIVE_BYTES = 4 * 2**20  # of snapshots that an executor keeps; the environments take four to eight times as much
RUNTIMES = 256
COMPARING = "/comparing"  # what an executor says when it begins to; no part has such a name
MAX_VOLUMES = 64  # of a toolpack
PIECE_BYTES = 2**20  # of a piece without its content, at most
CUT_BYTES = 128  # of what stands for a result that was cut, at most

T = TypeVar("T")


class ProcessReference(NamedTuple):
    """Where an environment, or a volume, is that equals its bytes.

    Attributes:
        process: The number of an executor.
        tag: By which that knows it.
        pieces: Of a volume, the blob ids of its pieces: the session may have others meanwhile.
    """

    process: int
    tag: int
    pieces: tuple[str, ...] = ()


class RunCall(RunnerOperation[Outcome]):
    """Run a function, sent with its arguments as JSON text; `start` is called when it is about to start."""

    name = "call"
    leaves_traces = True
    _tags = itertools.count()

    def __init__(
        self, plan: Plan, toolpacks: Sequence[str], sent: bytes, snapshot: Snapshot, start: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._toolpacks = toolpacks
        self._sent = sent
        self._snapshot = snapshot
        self._start = start
        self._comparisons = 0
        self.who = f"`{plan.function}`"

    @override
    def run(self, means: Means) -> Outcome:
        return run_steps(self.steps(means), means.interruptible)

    @override
    def steps(self, means: Means) -> Steps[Outcome]:
        plan = self._plan
        self._start()
        watch = Watch()
        outcome = yield from call_steps(plan, self._snapshot, means)
        if watch.leaves_work(plan.footprint):
            outcome.live = {}
        return outcome

    @override
    def preferred(self) -> int | None:
        snapshot, footprint = self._snapshot, self._plan.footprint
        self._parts = tuple(part for part in snapshot.parts if toolpack_of(part) in footprint)
        self._used = [part for toolpack, fields in footprint.items() for part in wanted(self._parts, toolpack, fields)]
        found = {part: snapshot.live.pop(part, None) for part in self._used}
        self._live: dict[str, ProcessReference] = {part: held for part, held in found.items() if held is not None}
        self._volumes = [stored for toolpack in footprint for stored in stored_volumes(self._parts, toolpack)]
        for stored in self._volumes:
            held = snapshot.live.pop(stored.live, None)
            if held is not None and held.pieces == tuple(snapshot.parts[part] for part in stored.parts):
                self._live[stored.live] = held
        self._tag = next(self._tags)
        return next(iter(self._live.values())).process if self._live else None

    @override
    def write(self, codec: Codec, process: int) -> Frame:
        """Write the request, with the environments that the executor doesn't hold."""
        plan = self._plan
        held = {part: place.tag for part, place in self._live.items() if place.process == process}
        given = [part for part in self._used if part not in held]
        head = {
            "toolpacks": self._toolpacks,
            "function": plan.function,
            "kwargs": Fragment(self._sent),
            "offered": None if plan.runtime.offered is None else sorted(plan.runtime.offered),
            "distrusted": plan.runtime.distrusted,
            "read_only": plan.read_only,
            "compares": plan.compares,
            "tracebacks": plan.tracebacks,
            "parts": known_parts(self._snapshot, self._parts),
            "given": given,
            "held": held,
            "tag": self._tag,
            # As text, because a time after the year 2554 has more bits than a number that may stand beside fragments.
            "pin": plan.pin and Fragment(dumps(asdict(plan.pin))),
        }
        pieces = [opened(codec, self._snapshot, part) for part in given]
        self._start()
        return Frame(head, pieces)

    @override
    def supply(self, need: Any, codec: Codec) -> Frame:
        """Get a part that the function uses beyond its footprint, or that the executor has dropped."""
        if need == COMPARING:
            check_answer(self._plan.compares and self._comparisons <= len(self._plan.nested))
            self._comparisons += 1
            self._plan.comparing()
            return Frame({}, [])
        check_answer(need in self._snapshot.parts)
        return Frame({}, [opened(codec, self._snapshot, need)])

    @override
    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        nested, parts = len(self._plan.nested), 0 if self._plan.read_only else len(self._parts)
        texts = 2 * means.max_result_bytes + nested * CUT_BYTES  # the result, and those of the nested calls together
        pieces, most = 0, 0
        if self._volumes and not self._plan.read_only:
            pieces, most = SLOTS * len(self._volumes), len(self._volumes) * _largest_piece(means.codec)
        return len(sizes) <= 1 + nested + parts + pieces and sum(sizes) <= texts + parts * means.codec.max_bytes + most

    @override
    def read(self, answer: Frame, means: Means, process: int) -> Outcome:
        plan, head = self._plan, answer.head
        changed, live, returned = head["blobs"], head["live"], head["nested"]
        volumes = {stored.live: stored for stored in self._volumes}
        parts = {*self._parts, *(part for stored in self._volumes for part in stored.possible)}
        check_answer({*changed} <= parts and {*live} <= {*self._parts, *volumes})
        check_answer(returned in range(len(plan.nested) + 1))
        result, nested = answer.pieces[0], answer.pieces[1 : 1 + returned]
        payloads = answer.pieces[1 + returned :]
        check_answer(len(result) <= means.max_result_bytes)
        check_answer(sum(map(len, nested)) <= means.max_result_bytes + returned * CUT_BYTES)
        check_answer(
            all(
                len(payload) <= (_largest_piece(means.codec) if is_piece(part) else means.codec.max_bytes)
                for part, payload in zip(changed, payloads, strict=True)
            )
        )
        for text in nested:
            orjson.loads(text)  # as the result, below
        outcome = Outcome(comparison=self._comparison(head["comparison"]), nested=nested)
        if head["failure"] is None:
            _check_result(result, content=plan.content)
            outcome.result, outcome.changes = result, not plan.read_only
            sealed = zip(changed, payloads, strict=True)
            outcome.blobs = {part: means.codec.seal(part, payload) for part, payload in sealed}
            outcome.live = dict.fromkeys(live, ProcessReference(process, self._tag))
            outcome.entries = read_entries(head["entries"], changed) if plan.pin is not None else {}
            outcome.changed = _counts(head["changed"], self._volumes)
        else:
            outcome.failure = _failure(head, plan, means.max_result_bytes)
        now = {**self._snapshot.parts, **{part: blob_id for part, (blob_id, _) in outcome.blobs.items()}}
        for name in {*live} & volumes.keys():
            pieces = tuple(now[part] for part in volumes[name].possible if part in now)
            outcome.live[name] = ProcessReference(process, self._tag, pieces)
        return outcome

    def _comparison(self, members: Any) -> PromiseCheck | None:
        check_answer((members is not None) == self._plan.compares)
        if members is None:
            return None
        seconds, broken = members
        check_answer(isinstance(seconds, float) and seconds >= 0)
        if broken is None:
            return PromiseCheck(seconds)
        toolpack, function, change = broken
        check_answer((toolpack, function) in self._plan.promises() and isinstance(change, str))
        return PromiseCheck(seconds, (toolpack, function, printable(shown(change))))

    @override
    def crashed(self, error: CrashedError) -> Outcome:
        return Outcome(failure=CallFailure.of(error, Failure.CRASHED, keep_cause=False))

    @classmethod
    @override
    def serving(cls, means: Means, ask: Ask) -> Callable[[Frame], Frame]:
        return _Calls(means, ask).serve


class _Calls:
    """Runs functions in an executor, and keeps the environments that were used last.

    They are a cache: the worker says which it believes to be here, and is asked for those that aren't.
    """

    def __init__(self, means: Means, ask: Ask) -> None:
        self._means = means
        self._ask = ask
        self._live = BoundedCache[tuple[int, str], tuple[Any, int]](LIVE_BYTES, lambda live: live[1])
        self._runtime = lru_cache(maxsize=RUNTIMES)(self._make_runtime)

    def serve(self, request: Frame) -> Frame:
        head, means = request.head, self._means
        offered = None if head["offered"] is None else frozenset(head["offered"])
        plan = self._runtime(tuple(head["toolpacks"]), offered).plan(head["function"], head["kwargs"])
        # The worker knows what has been seen of the functions in all executors.
        plan.trusted -= frozenset(head["distrusted"])
        plan.read_only, plan.compares, plan.tracebacks = head["read_only"], head["compares"], head["tracebacks"]
        plan.comparing = self._begin_comparing
        plan.pin = head["pin"] and Pin(**head["pin"])
        given = dict(zip(head["given"], request.pieces, strict=True))
        snapshot = Snapshot(head["parts"], AskedParts(self._ask, given))
        sizes = {part: len(blob) for part, blob in given.items()}
        for part, tag in head["held"].items():
            live = self._live.pop((tag, part))
            if live is not None:
                snapshot.live[part], sizes[part] = live
        outcome = call(plan, snapshot, means)
        sizes.update({part: len(blob) for part, blob in snapshot.blobs.items()})
        sizes.update({part: len(blob) for part, (_, blob) in outcome.blobs.items()})
        unused = {(head["held"][part], part): (live, sizes[part]) for part, live in snapshot.live.items()}
        used = {(head["tag"], part): (live, sizes.get(part, 0)) for part, live in outcome.live.items()}
        self._live.put_all({**unused, **used})  # an environment is kept for the next call, however large it is
        compared = outcome.comparison
        answer = {
            "failure": outcome.failure and outcome.failure.members(),
            "traceback": outcome.failure and outcome.failure.traceback,
            "comparison": compared and [compared.seconds, compared.broken],
            "nested": len(outcome.nested),
            "blobs": [*outcome.blobs],
            "live": [*outcome.live],
            "entries": outcome.entries,
            "changed": outcome.changed or {},
        }
        return Frame(answer, [outcome.result or b"", *outcome.nested, *(blob for _, blob in outcome.blobs.values())])

    def _begin_comparing(self) -> None:
        self._ask(COMPARING)

    def _make_runtime(self, toolpacks: tuple[str, ...], offered: frozenset[str] | None) -> SessionRuntime:
        return SessionRuntime(self._means.codec.catalog.functions(toolpacks), timeout_seconds=0, offered=offered)


@dataclass(eq=False)
class _Making(Declared[Built]):
    """Make the environment of a toolpack."""

    toolpack: str
    source: Any
    pin: Pin | None = None
    _make: ClassVar["staticmethod[[PlainCodec, str, Any, Pin | None], Built]"]
    _author: ClassVar[str]  # whose code it is

    def __post_init__(self) -> None:
        self.who = f"{self._author} of toolpack {self.toolpack!r}"

    @override
    def run(self, means: Means) -> Built:
        return self._make(means.codec, self.toolpack, self.source, self.pin)

    @classmethod
    @override
    def answer(cls, result: Built) -> Frame:
        return Frame({"parts": [*result]}, [blob for _, blob in result.values()])

    @override
    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        functions = means.codec.catalog.toolpacks[self.toolpack].functions.values()
        # One part for each attribute that a function uses, if it uses no other, one for the rest, and for each volume.
        parts = 1 + sum(len(function.function.dependencies) for function in functions) + MAX_VOLUMES
        most = max(means.codec.max_bytes, _largest_piece(means.codec))
        return len(sizes) <= parts and all(size <= most for size in sizes)

    @override
    def read(self, answer: Frame, means: Means, process: int) -> Built:
        payloads = dict(zip(answer.head["parts"], answer.pieces, strict=True))
        check_answer(payloads and all(toolpack_of(part) == self.toolpack for part in payloads))
        return {part: means.codec.seal(part, payload) for part, payload in payloads.items()}


@dataclass(eq=False)
class BuildEnvironment(_Making):
    """Build a toolpack's initial environment from options."""

    name = "build"
    _make = staticmethod(build)
    _author = "The factory"


@dataclass(eq=False)
class ParseEnvironment(_Making):
    """Build a toolpack's environment from JSON."""

    name = "parse"
    _make = staticmethod(parse)
    _author = "The environment"


@dataclass(eq=False)
class ExportEnvironments(DeclaredText):
    """Get all environments, by toolpack, as one exact snapshot."""

    snapshot: Snapshot
    name = "export"

    @override
    def run(self, means: Means) -> bytes:
        return export(means.codec, self.snapshot)

    @override
    def read(self, answer: Frame, means: Means, process: int) -> bytes:
        (found,) = answer.pieces  # which nobody here looks into
        return found


@dataclass(eq=False)
class ViewEnvironments(DeclaredText):
    """Get the JSON of all environments, by toolpack."""

    snapshot: Snapshot
    name = "view"

    @override
    def run(self, means: Means) -> bytes:
        return view(means.codec, self.snapshot)


@dataclass(eq=False)
class ViewWithoutVolumes(DeclaredText):
    """Get the JSON of all environments, by toolpack, but for what is in volumes."""

    snapshot: Snapshot
    name = "view-rest"

    @override
    def run(self, means: Means) -> bytes:
        return view_without_volumes(means.codec, self.snapshot)


@dataclass(eq=False)
class ViewVolume(DeclaredText):
    """Get the JSON of what a pointer leads to in a volume; no text if it leads to nothing."""

    snapshot: Snapshot
    wanted: Pointed
    name = "view-volume"

    @override
    def run(self, means: Means) -> bytes:
        try:
            return dumps(pointed(means.codec, self.snapshot, self.wanted))
        except LookupError:
            return b""

    @override
    def read(self, answer: Frame, means: Means, process: int) -> bytes:
        return b"" if answer.pieces == [b""] else super().read(answer, means, process)


@dataclass(eq=False)
class ExportVolumes(DeclaredLong[dict[str, str]]):
    """Get the volumes by name, each as a file that other programs read, in base64."""

    snapshot: Snapshot
    name = "export-volumes"
    shape = TypeAdapter(dict[str, str])

    @override
    def run(self, means: Means) -> dict[str, str]:
        return contents(means.codec, self.snapshot)

    @override
    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        return super().allows(sizes, means) and sum(sizes) <= 2 * MAX_VOLUMES * _largest_piece(means.codec)


@dataclass(eq=False)
class PatchVolumes(DeclaredLong[list[dict[str, Any]]]):
    """Get the operations of a JSON Patch from the volumes of one snapshot to those of another, by their paths."""

    before: Snapshot
    after: Snapshot
    paths: Mapping[str, str]
    text_diffs: bool
    name = "patch-volumes"
    shape = TypeAdapter(list[dict[str, Any]])

    def __post_init__(self) -> None:
        self.before, self.after = map(_pieces, (self.before, self.after))

    @override
    def run(self, means: Means) -> list[dict[str, Any]]:
        return patch(means.codec, self.before, self.after, self.paths, text_diffs=self.text_diffs)


OPERATIONS: tuple[type[RunnerOperation[Any]], ...] = (
    RunCall,
    BuildEnvironment,
    ParseEnvironment,
    ViewEnvironments,
    ViewWithoutVolumes,
    ViewVolume,
    ExportEnvironments,
    ExportVolumes,
    PatchVolumes,
)


def read_entries(found: Any, parts: Iterable[str]) -> dict[str, Entries | None]:
    """Read what the digests of parts are made of; raises as `RunnerOperation.read`."""
    check_answer(isinstance(found, dict) and found.keys() == {*parts})
    for read in found.values():
        check_answer(read is None or (isinstance(read, list) and all(isinstance(entry, str) for entry in read)))
    return {part: read if read is None else tuple(read) for part, read in found.items()}


def _counts(counts: Any, volumes: Sequence[Stored]) -> dict[str, int]:
    """Read how much a call has changed in each volume; raises as `RunnerOperation.read`."""
    check_answer(isinstance(counts, dict) and counts.keys() <= {stored.name for stored in volumes})
    check_answer(all(type(count) is int and count >= 0 for count in counts.values()))
    return dict(counts)


def _pieces(snapshot: Snapshot) -> Snapshot:
    return Snapshot({part: blob for part, blob in snapshot.parts.items() if is_piece(part)}, snapshot.blobs)


def _largest_piece(codec: PlainCodec) -> int:
    """Get how many bytes a piece may have: everything, and twice that is larger than any list of what is in it."""
    limits = Limits() if codec.volumes is None else codec.volumes.limits
    return 2 * limits.max_bytes + PIECE_BYTES


def _check_result(result: bytes, *, content: bool) -> None:
    orjson.loads(result)  # it becomes a part of answers and records, which must stay JSON
    if content:
        try:
            check_content(result)
        except ResultError as error:
            raise ValueError(str(error)) from None


def _failure(head: Mapping[str, Any], plan: Plan, max_bytes: int) -> CallFailure:
    """Read why a call has failed; who has run it has shortened the texts."""
    members, traceback = head["failure"], head["traceback"]
    kind, message, why = members["kind"], members["message"], Failure(members["why"])
    errors, similar = members["errors"], members["similar"]
    check_answer(isinstance(kind, str) and isinstance(message, str) and why in OF_CALLS)
    check_answer(len(kind) + len(message) <= max_bytes + MAX_SHOWN)  # a shortened text says so at its end
    check_answer(errors is None or (isinstance(errors, list) and len(dumps(errors)) <= max_bytes))
    check_answer(similar is None or {*similar} <= plan.runtime.functions.keys())
    check_answer(traceback is None or (isinstance(traceback, str) and len(traceback) <= 2 * MAX_CHARACTERS))
    return CallFailure(kind, message, why, errors, similar, traceback=traceback)
