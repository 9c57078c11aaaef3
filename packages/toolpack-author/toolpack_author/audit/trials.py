"""Execution of attempts at a task.

The task's solution runs in real sessions, at the agent path. Attempts run without sessions, which is much faster: on
the same snapshots, with the same functions, evaluators and limits, but nothing is stored. Attempts at a task with
events run in sessions, too.

Each call and each evaluation has a deadline. They run on the main thread, where a signal interrupts them when they are
late.
"""

import contextlib
import copy
import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jsonpointer
from pydantic import BaseModel
from typing_extensions import override

from toolpack_author.audit.attempts import Attempt, Calls
from toolpack_author.audit.deadlines import deadline
from toolpack_author.audit.moving import MovingSessions
from toolpack_author.audit.values import leaves, spoken_in
from toolpack_author.audit.worlds import DIFFERENT, EQUAL, MARKS, at, difference, marked
from toolpack_server import Database, Files, Task
from toolpack_server.base.errors import Interrupted, for_author
from toolpack_server.execution.call import call
from toolpack_server.execution.codec import Codec, PlainCodec
from toolpack_server.execution.failure import Failure
from toolpack_server.execution.nested import read_nested
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.views import view
from toolpack_server.execution.volumes import READING, Volumes
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.api.core import AGENT, CLIENT, Address, Caller, EvaluationError, ReplyError, RequestError
from toolpack_server.features.evaluation.tasks.evaluation import Evidence, SeenRecord, evaluate, solve
from toolpack_server.features.evaluation.tasks.results import Verdict
from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.features.evaluation.tasks.solutions import PlainCall
from toolpack_server.features.executors.transport import unseal_part
from toolpack_server.features.replay.pinned_clock import PinnedClock
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.pack_function import PackFunction, is_offered
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.volumes.volume import is_piece
from toolpack_server.wiring.service import Service

KEPT_WORLDS = 50  # cached worlds of one task, as JSON
MOST_CONTAINERS, MOST_DEEP = 50, 4  # containers of a world that are emptied, and the max depth of their paths
CLOCK_NS = 1_767_225_600 * 10**9  # 2026-01-01: the pinned time

Phase = Callable[[str, float], None]
"""Callback before toolpacks' code runs, with a description of the code and its deadline in seconds."""


class RefusedError(Exception):
    """No session can be created for a task, or its solution doesn't run at the agent path.

    Args:
        kind: The kind of the finding.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Stage:
    """The state after some calls: the world of each version, and the records of the calls."""

    snapshots: tuple[Snapshot, ...]  # by version
    path: tuple[SeenRecord, ...] = ()
    used: Mapping[str, int] = field(default_factory=dict)  # number of calls by participant
    refused: bool = False  # the last call failed
    late: bool = False  # a call missed its deadline
    written: frozenset[str] = frozenset()  # the parts that the last call wrote
    calls: Calls = ()  # in a session with events: all calls


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an attempt.

    Attributes:
        verdict: The verdict; None if there is none.
        failure: Why there is no verdict; "" if a call was late.
        not_finite: The reward isn't a finite number.
        refused: The call that differs from the solution's failed or changed nothing. For `respelled`: any call failed.
        world: Difference of its world to the solution's. It is computed only if the attempt passed.
        changed: Whether its calls created a version.
    """

    attempt: Attempt
    verdict: Verdict | None = None
    failure: str = ""
    not_finite: bool = False
    refused: bool = False
    world: str = DIFFERENT
    changed: bool = False

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict["passed"]


class _TrialCodec(PlainCodec):
    """Codec that skips decoding: the next reader of a part gets the object that the last call left, once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left: dict[str, tuple[bytes, BaseModel]] = {}  # by part: the bytes and the equal object

    @override
    def decode(self, part: str, blob_id: str, blob: bytes) -> BaseModel:
        if part in self.left and self.left[part][0] is blob:
            return self.left.pop(part)[1]
        return super().decode(part, blob_id, blob)


class Trials:
    """The trials of one task.

    The constructor plays the task in two sessions and once without a session. If the worlds of the two sessions differ,
    later calls have a pinned clock and pinned random numbers. If verdicts differ, `unstable` is set.

    Args:
        service: The service that creates the sessions.
        name: The task's full name.
        task: The task.
        phase: Called before toolpacks' code runs.
        drive: Runs a coroutine on the service's event loop.
        listed: Returns the functions of toolpacks with their descriptions.
        ignore: JSON Pointers to parts of the world that are ignored in comparisons.
        clients: Functions in solutions that the client calls, not an agent.

    Attributes:
        task: The task.
        prompt: The prompt as one text.
        functions: The descriptions of the agent's functions, by name.
        calls: The solution's calls; None if there is no solution.
        answer: The solution's answer.
        changing: Indexes of the agent's calls in the solution that created a version.
        nothing: The verdict on doing nothing.
        solved: The verdict on the solution; None without a solution.
        unstable: Why verdicts are unreliable; "" if they are reliable.
        initial: The initial world as JSON.

    Raises:
        RefusedError: The task can't be tried.
    """

    def __init__(
        self,
        service: Service,
        name: str,
        task: Task,
        ignore: Sequence[str],
        clients: frozenset[str],
        phase: Phase,
        drive: Callable[[Any], Any],
        listed: Callable[[tuple[str, ...]], Sequence[tuple[PackFunction, Mapping[str, Any]]]],
    ) -> None:
        self.name, self.task = name, task
        self.unstable, self._overran = "", False
        self._service, self._clients, self._phase, self._drive = service, clients, phase, drive
        self._ignore = [jsonpointer.JsonPointer(pointer) for pointer in ignore]
        self._seconds = service.settings.timeout_seconds
        self._deadline = task.timeout_seconds or self._seconds
        limit = service.settings.max_environment_bytes
        self._codec = _TrialCodec(service.context.catalog, limit, service.codec.volumes)
        self._context = ExecutionContext(self._codec, service.settings.max_result_bytes)
        self._worlds: dict[tuple[bytes, ...], Any] = {}
        self._pinned = False
        self._slow: set[str] = set()
        first, second = self._session(2), self._session(1)
        self._moving = MovingSessions(service, name) if first.moves else None
        initial = first.evidence.initial
        self._start = Stage((initial,))
        self._evidence = replace(first.evidence, initial=initial, final=initial)
        if first.worlds != second.worlds and not first.moves:
            self._pin()
        self._describe(first, listed(self._evidence.toolpacks))
        self.calls: Calls | None
        self.calls, self.answer = (None, "") if task.solution is None else self._solution()
        toolpacks, runtime = self._evidence.toolpacks, service.context.runtime
        self._runtimes = {name: runtime(toolpacks, each.functions) for name, each in first.addresses.items()}
        self._runtimes[CLIENT] = runtime(toolpacks, None)
        self._most = {name: each.max_calls for name, each in first.addresses.items()} | {CLIENT: None}
        self._stages = [self._start]
        for each in self.calls or ():
            self._stages.append(self._call(self._stages[-1], each))
        versions = [len(stage.snapshots) for stage in self._stages]
        changing = [index for index in range(len(versions) - 1) if versions[index + 1] > versions[index]]
        self.changing = [index for index in changing if self.calls and self._is_change(self.calls[index])]
        self.nothing, self.solved = first.nothing, first.solved
        self._compare(first, second)

    # In sessions

    def _session(self, evaluations: int) -> "_SessionShown":
        run_options = self._clients, self._phase, self._drive
        return in_session(self._service, self.name, self.task, *run_options, evaluations=evaluations)

    def _compare(self, first: "_SessionShown", second: "_SessionShown") -> None:
        """Set `unstable` if the verdicts of two sessions and those without a session differ."""
        if first.unstable or second.unstable:
            self.unstable = "a second evaluation gives another verdict"
        elif first.said() != second.said():
            self.unstable = "a second session gives another verdict"
        else:
            mine = [self.judge(self._start, "")]
            if self.calls is not None:
                mine.append(self.judge(self._stages[-1], self.answer))
            theirs = [each for each in (first.nothing, first.solved) if each is not None]
            if [said(each) for each in mine] != [said(each) for each in theirs]:
                self.unstable = "a third run of the solution gives another verdict"

    def _pin(self) -> None:
        """Pin the clock and random numbers for all further calls, because two sessions had different worlds."""
        if importlib.util.find_spec("time_machine") is None:
            self.unstable = (
                "the same calls lead to different worlds, because a function uses random numbers or the clock, and "
                "these can't be pinned: pip install 'toolpack-server[seeded]'"
            )
            return
        self._pinned = True
        evidence, context = self._evidence, self._service.context
        parts, blobs = context.initial_parts(evidence.toolpacks, evidence.options, {}, PinnedClock(0, "", CLOCK_NS))
        initial = Snapshot(parts, {part: blobs[blob_id] for part, blob_id in parts.items()})
        initial = _opened(context.codec, initial)
        self._evidence = replace(evidence, initial=initial, final=initial)
        self._start = Stage((initial,))

    def _describe(self, session: "_SessionShown", listed: Sequence[tuple[PackFunction, Mapping[str, Any]]]) -> None:
        prompt = self.task.prompt
        self.prompt = prompt if isinstance(prompt, str) else "\n".join(each["content"] for each in prompt)
        self.functions = {
            each.name: shown for each, shown in listed if _offered(each, session.addresses[AGENT].functions)
        }
        self.initial = self._world(self._start)

    def _is_change(self, made: PlainCall) -> bool:
        """Return whether a call that created a version did so itself, and was the agent's."""
        described = self.functions.get(made[0])
        return made[2] == AGENT and not (described and described["read_only"])

    def _solution(self) -> tuple[Calls, str]:
        solution = solve(self.name, self._evidence, self._context)
        calls = ((each["function"], each["kwargs"], _by(each, self._clients)) for each in solution["calls"])
        return tuple(calls), solution["answer"]

    # Without sessions

    def attempts(self, attempts: Iterable[Attempt]) -> Iterator[AttemptResult]:
        """Run attempts and yield their results. Stop when the evaluator misses its deadline, which could repeat."""
        for attempt in attempts:
            result = self._attempt(attempt)
            yield result
            if self._overran:
                return

    def _attempt(self, attempt: Attempt) -> AttemptResult:
        try:
            stage = self._stages[attempt.start]
        except IndexError:
            return AttemptResult(attempt)
        refused, first, live = False, stage, dict[str, Any]()
        for number, each in enumerate(attempt.calls):
            if each[0] in self._slow and each not in (self.calls or ()):
                return AttemptResult(attempt)
            stage = self._call(stage, each, live)
            if number == 0:
                refused, first = stage.refused, stage
            if attempt.kind == "respelled":
                refused |= stage.refused
            if stage.late:
                self._slow.add(each[0])
                return AttemptResult(attempt)
        changed = len(stage.snapshots) > 1
        try:
            self._leave(stage, live)
            verdict = self.judge(stage, attempt.answer, attempt.kind)
        except (RequestError, Interrupted) as error:
            self._overran |= isinstance(error, Interrupted)
            late = f"The evaluator of {self.name!r} took longer than {self._deadline:g} s."
            failure = late if isinstance(error, Interrupted) else for_author(error)
            not_finite = isinstance(error, EvaluationError) and error.not_finite
            return AttemptResult(attempt, None, failure, not_finite, refused, DIFFERENT, changed)
        if attempt.kind == "argument" and not verdict["passed"]:
            refused |= self._is_as_before(self._stages[attempt.start], first)
        world = self._difference(stage) if verdict["passed"] else DIFFERENT
        return AttemptResult(attempt, verdict, "", False, refused, world, changed)

    def _leave(self, stage: Stage, live: Mapping[str, Any]) -> None:
        """Pass the objects that the last call wrote to the evaluator, so that it needn't decode them."""
        blobs = stage.snapshots[-1].blobs
        self._codec.left = {part: (blobs[part], live[part]) for part in stage.written & live.keys()}

    def judge(self, stage: Stage, answer: str, what: str = "") -> Verdict:
        """Return the verdict on a stage.

        Raises:
            EvaluationError: The evaluator failed.
            Interrupted: The evaluator missed its deadline.
        """
        versions = stage.snapshots
        evidence = replace(
            self._evidence,
            final=versions[-1],
            version=len(versions) - 1,
            path=copy.deepcopy(stage.path),
            answer=answer,
            at=versions.__getitem__,
        )
        self._phase(f"the evaluator, after {what or 'the solution'}", self._deadline)
        with deadline(self._deadline):
            return evaluate(self.name, evidence, self._context)

    def minimal(self, results: Iterable[AttemptResult]) -> list[int]:
        """Return the indexes of a minimal set of the solution's calls that still passes.

        Calls are omitted one by one from the end.

        Args:
            results: Results of attempts, which aren't run again.
        """
        calls = self.calls or ()
        known = {
            dumps((calls[: each.attempt.start] + each.attempt.calls, each.attempt.answer)): each.passed
            for each in results
            if each.attempt.kind in {"omit", "read only"}
        }
        kept = [*range(len(calls))]
        for index in reversed(range(len(calls))):
            fewer = [each for each in kept if each != index]
            tried = dumps((tuple(calls[each] for each in fewer), self.answer))
            if known[tried] if tried in known else self._passes_with(fewer, index):
                kept = fewer
        return kept

    def _passes_with(self, places: Sequence[int], omitted: int) -> bool:
        """Return whether these calls of the solution pass. No call before the last omitted one is missing."""
        stage, live = self._stages[omitted], dict[str, Any]()
        for each in places:
            if each > omitted:
                stage = self._call(stage, (self.calls or ())[each], live)
        with contextlib.suppress(EvaluationError, Interrupted):
            return not stage.late and self.judge(stage, self.answer)["passed"]
        return False

    def _call(self, stage: Stage, made: PlainCall, live: dict[str, Any] | None = None) -> Stage:
        """Run a call with its participant's permissions. `live` has decoded objects of the stage's world."""
        function, kwargs, by = made
        if self._moving is not None:
            return self._call_in_session(self._moving, stage, made)
        live = {} if live is None or self._pinned else live
        snapshot = stage.snapshots[-1]
        plan = self._runtimes[by].plan(function, loads(dumps(kwargs)))
        used, most = stage.used.get(by, 0) + 1 + len(plan.nested), self._most[by]
        if most is not None and used > most:
            return replace(stage, refused=True)
        if self._pinned:
            plan.policy = _pin(made, stage.path)
        plan.compares = False
        self._phase(f"`{function}`", plan.timeout_seconds)
        with deadline(plan.timeout_seconds) as watched:
            outcome = call(plan, Snapshot(snapshot.parts, snapshot.blobs, live), self._context)
        if watched.late:
            return replace(stage, refused=True, late=True)
        failure, results = outcome.failure, outcome.nested
        seen: dict[str, Any] = {
            "function": function,
            "kwargs": kwargs,
            "result": "" if outcome.result is None else loads(outcome.result),
            "error": failure.text if failure else None,
            "by": by,
        }
        if plan.nested:
            seen["nested"] = [
                {
                    "function": each.function,
                    "kwargs": each.arguments,
                    "result": loads(results[number]) if number < len(results) else "",
                    "error": None if number < len(results) else seen["error"],
                    "parent": each.parent,
                }
                for number, each in enumerate(plan.nested)
            ]
        live.update(outcome.live)
        snapshots = stage.snapshots
        if outcome.changes:
            parts = {**snapshot.parts, **{part: blob_id for part, (blob_id, _) in outcome.blobs.items()}}
            blobs = {**snapshot.blobs, **{part: blob for part, (_, blob) in outcome.blobs.items()}}
            snapshots = (*snapshots, Snapshot(parts, blobs))
        record = SeenRecord(len(snapshots) - 1, seen, None, None)
        used_now = {**stage.used, by: used}
        return Stage(snapshots, (*stage.path, record), used_now, failure is not None, written=frozenset(outcome.blobs))

    def _call_in_session(self, sessions: MovingSessions, stage: Stage, made: PlainCall) -> Stage:
        calls = (*stage.calls, made)
        self._phase(f"`{made[0]}`, and events", 2 * self._seconds)
        moved = self._drive(sessions.call(calls, len(stage.snapshots)))
        return Stage((*stage.snapshots, *moved.snapshots), moved.path, refused=moved.failed, calls=calls)

    # Worlds

    def _world(self, stage: Stage) -> Any:
        key = _content(stage)
        if key not in self._worlds:
            world = loads(view(self._codec, stage.snapshots[-1]))
            for pointer in self._ignore:
                with contextlib.suppress(jsonpointer.JsonPointerException, LookupError, TypeError):
                    holder, last = pointer.to_last(world)
                    del holder[last]
            if len(self._worlds) == KEPT_WORLDS:
                self._worlds.clear()
            self._worlds[key] = world
        return self._worlds[key]

    def _is_as_before(self, before: Stage, after: Stage) -> bool:
        return _content(before) == _content(after) or self._world(before) == self._world(after)

    def _difference(self, stage: Stage) -> str:
        if self.calls is None:
            return DIFFERENT
        solved = self._stages[-1]
        if _content(solved) == _content(stage):
            return EQUAL
        worlds = self._world(solved), self._world(stage)
        found = difference(*worlds)
        return difference(*worlds, self._asked) if found == MARKS else found

    @cached_property
    def _asked(self) -> frozenset[str]:
        """Names of boolean members that the task is about: its solution sets them, or its prompt names them.

        A call with a result may be made for the result, and set a mark only as a side effect.
        """
        asked = set[str]()
        for index in self.changing:
            before, after = self._stages[index], self._stages[index + 1]
            names = marked(self._world(before), self._world(after))
            _, kwargs, _ = (self.calls or ())[index]
            chosen = any(isinstance(value, bool) for _, _, value in leaves(kwargs, "", ()))
            call_seen = after.path[-1].call or {}
            is_silent = call_seen.get("result") is None or isinstance(call_seen["result"], bool)
            asked |= {name for name in names if chosen or (is_silent and spoken_in(self.prompt, name))}
        return frozenset(asked)

    # Unrelated data

    def guards(self) -> set[str]:
        """Return the names of the checks that fail if data that the solution leaves unchanged is emptied."""
        found = set[str]()
        solved = self._stages[-1]
        snapshot = solved.snapshots[-1]
        for part, path in [*self._containers(snapshot)][:MOST_CONTAINERS]:
            whole = self._codec.decode(part, snapshot.parts[part], snapshot.blobs[part])
            held: Any = whole
            for name in path:
                held = getattr(held, name)
            held.clear()
            changed = _with_blobs(snapshot, {part: self._codec.encode(part, whole)})
            if not self._note_failing(found, changed, ".".join(path)):
                return found
        for name, changed in itertools.islice(self._emptied_volumes(snapshot), MOST_CONTAINERS):
            if not self._note_failing(found, changed, name):
                return found
        return found

    def _note_failing(self, found: set[str], changed: Snapshot, name: str) -> bool:
        """Add the names of the checks that fail on a world with emptied data. Return False after a missed deadline."""
        solved = self._stages[-1]
        stage = replace(solved, snapshots=(*solved.snapshots[:-1], changed))
        try:
            verdict = self.judge(stage, self.answer, f"the solution, without {name}")
        except EvaluationError:
            return True
        except Interrupted:
            return False
        found |= {check["name"] for check in verdict["checks"] if not check["passed"]}
        return True

    def _emptied_volumes(self, snapshot: Snapshot) -> Iterator[tuple[str, Snapshot]]:
        """Yield the solved world without one table's rows, one top-level file, or one top-level folder's files.

        It does so for each table and top-level entry that the solution leaves unchanged.
        """
        for toolpack in dict.fromkeys(toolpack_of(part) for part in snapshot.parts if is_piece(part)):
            for name, held in self._unchanged(toolpack, snapshot):
                volumes = Volumes(self._codec, read_only="")
                try:
                    volumes.bind(toolpack, None, snapshot)
                    _empty(volumes.bound[name], held)
                    changes = volumes.finish()
                except Exception:  # noqa: BLE001, S112 - a schema may refuse the change
                    continue
                finally:
                    volumes.abandon(keep=False)
                yield f"{name}/{held}", _with_blobs(snapshot, changes.blobs)

    def _unchanged(self, toolpack: str, snapshot: Snapshot) -> list[tuple[str, str]]:
        """Return the unchanged tables and top-level entries of a toolpack's volumes, with their volumes' names."""
        first, last = (Volumes(self._codec, read_only=READING) for _ in range(2))
        try:
            first.bind(toolpack, None, self._start.snapshots[-1])
            last.bind(toolpack, None, snapshot)
            return [
                (name, held)
                for name, volume in last.bound.items()
                if name in first.bound
                for held in _held(first.bound[name], volume)
            ]
        except Exception:  # noqa: BLE001 - unreadable data can't be compared
            return []
        finally:
            first.abandon()
            last.abandon()

    def _containers(self, snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the parts and paths of containers that aren't empty and are unchanged."""
        initial, solved = self._world(self._start), self._world(self._stages[-1])
        for part, blob_id in snapshot.parts.items():
            if is_piece(part):
                continue
            pending: list[tuple[tuple[str, ...], Any]] = [((), self._codec.decode(part, blob_id, snapshot.blobs[part]))]
            while pending:
                path, held = pending.pop()
                if isinstance(held, BaseModel) and len(path) < MOST_DEEP:
                    pending += [((*path, name), value) for name, value in vars(held).items()]
                elif isinstance(held, list | dict | set) and held:
                    shown = [at(world, (toolpack_of(part), *path)) for world in (initial, solved)]
                    if shown[0] == shown[1] is not None:
                        yield part, path


def _with_blobs(snapshot: Snapshot, blobs: Mapping[str, tuple[str, bytes]]) -> Snapshot:
    parts = {**snapshot.parts, **{part: blob_id for part, (blob_id, _) in blobs.items()}}
    return Snapshot(parts, {**snapshot.blobs, **{part: blob for part, (_, blob) in blobs.items()}})


def _held(before: Any, after: Any) -> list[str]:
    """Return the tables of a database, or the top-level entries of files, that are equal in both."""
    changed = {change["path"].split("/")[1] for change in before.patch(after, "", text_diffs=False) if change["path"]}
    if isinstance(after, Database):
        rows = after.connect().execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
        names = [name for (name,) in rows]
    else:
        names = after.iterdir() if isinstance(after, Files) else []
    return [name for name in names if jsonpointer.escape(name) not in changed]


def _empty(volume: Any, name: str) -> None:
    """Delete all rows of a table, a file, or all files of a folder."""
    if isinstance(volume, Database):
        quoted = name.replace('"', '""')
        with volume.connect() as connection:
            connection.execute(f'DELETE FROM "{quoted}"')  # noqa: S608 - quoted
        return
    for path in [name, *volume.glob(f"{name}/**/*")]:
        if volume.is_file(path):
            volume.unlink(path)


def _content(stage: Stage) -> tuple[bytes, ...]:
    """Return the contents of a world's parts, as a key for caches."""
    snapshot = stage.snapshots[-1]
    return tuple([snapshot.blobs[part] for part in sorted(snapshot.parts)])


def said(verdict: Verdict | None) -> Any:
    """Return the stable parts of a verdict. Details aren't stable, as they may contain random values of a session."""
    if verdict is None:
        return None
    checks = sorted((check["name"], check["passed"]) for check in verdict["checks"])
    return [verdict["reward"], verdict["passed"], [[*check] for check in checks], verdict["metrics"]]


def _opened(codec: Codec, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without seals. It never leaves this process."""
    return Snapshot(snapshot.parts, {part: unseal_part(codec, snapshot, part) for part in snapshot.parts})


def _offered(function: PackFunction, offered: frozenset[str] | None) -> bool:
    return offered is None or is_offered(function, offered)


def _pin(made: PlainCall, path: Sequence[SeenRecord]) -> PinnedClock:
    """Return the pinned clock and seed of a call. They don't depend on its index, so other calls can be omitted."""
    before = sum((each.call["function"], each.call["kwargs"]) == made[:2] for each in path if each.call)
    return PinnedClock(1, f"{before} {dumps(made).decode()}", CLOCK_NS)


# Sessions


@dataclass(frozen=True, slots=True)
class _SessionShown:
    """The results of a task's session: with nothing done, and with its solution."""

    evidence: Evidence
    addresses: Mapping[str, Address]  # by name of the participant
    nothing: Verdict
    solved: Verdict | None
    worlds: Any
    unstable: bool
    moves: bool

    def said(self) -> list[Any]:
        return [said(self.nothing), said(self.solved)]


def in_session(
    service: Service,
    name: str,
    task: Task,
    clients: frozenset[str],
    phase: Phase,
    drive: Callable[[Any], Any],
    *,
    evaluations: int,
) -> _SessionShown:
    """Evaluate a task in a session: with nothing done, and with its solution.

    Raises:
        RefusedError: The task can't be tried.
    """
    session: _SessionShown = drive(_in_session(service, name, task, clients, phase, evaluations))
    return session


async def _in_session(
    service: Service, name: str, task: Task, clients: frozenset[str], phase: Phase, evaluations: int
) -> _SessionShown:
    async def send(method: str, **params: Any) -> Any:
        try:
            return await service.request(Caller(), method, params)
        except ReplyError as error:
            raise RefusedError(refusal, (error.data or {}).get("detail") or error.message) from None

    async def judged() -> Verdict:
        try:
            return await service.feature(Tasks).evaluate(session_id, "")
        except RequestError as error:
            not_finite = isinstance(error, EvaluationError) and error.not_finite
            raise RefusedError("reward-fails" if not_finite else "evaluator-fails", for_author(error)) from None

    refusal = "session-refused"
    patience = service.settings.timeout_seconds
    deadline = task.timeout_seconds or patience
    phase("the start of a session", 2 * patience)
    created = await send("create_session", task=name)
    session_id, moves = created["session_id"], "events" in created
    try:
        names = {AGENT, *task.participants}
        addresses = {name: await service.sessions.address(session_id, "", name) for name in names}
        tasks = service.feature(Tasks)
        heavy = service.sessions.heavy_reader
        evidence, _ = await service.sessions.read(lambda _: tasks.evidence(heavy, *heavy.find(session_id, ""), 0, None))
        evidence = replace(evidence, initial=_opened(service.codec, evidence.initial))  # before the session is closed
        phase("the evaluator, after nothing done", 3 * deadline)
        nothing, solved = [await judged() for _ in range(evaluations)], list[Verdict]()
        worlds = [await send("get_environment", session_id=session_id)]
        if task.solution is not None:
            refusal = "solution-fails"
            phase("the solution", patience)
            await _solve(service, session_id, addresses, clients, send, phase)
            phase("the evaluator, after the solution", 3 * deadline)
            solved = [await judged() for _ in range(evaluations)]
            worlds.append(await send("get_environment", session_id=session_id))
    finally:
        with contextlib.suppress(RefusedError):
            await send("close_session", session_id=session_id)
    unstable = any(said(each[0]) != said(other) for each in (nothing, solved) for other in each[1:])
    return _SessionShown(evidence, addresses, nothing[0], solved[0] if solved else None, worlds, unstable, moves)


async def _solve(
    service: Service,
    session_id: str,
    addresses: Mapping[str, Address],
    clients: frozenset[str],
    send: Callable[..., Any],
    phase: Phase,
) -> None:
    """Run the solution's calls at the agent path, and the client's calls as the client."""
    solution = await send("get_solution", session_id=session_id)
    for index, each in enumerate(solution["calls"]):
        phase(f"call {index + 1} of the solution, {each['function']}", 2 * service.settings.timeout_seconds)
        try:
            by = _by(each, clients)
            request = CallRequest(each["function"], each["kwargs"], dumps(each["kwargs"]), by=by)
            outcome = await service.sessions.call(session_id, "", request)
        except RequestError as error:
            raise RefusedError("solution-fails", f"call {index + 1} of its solution is refused: {error}") from None
        if outcome.failure is not None:
            kind = {Failure.NOT_FOUND: "hidden-function", Failure.EPISODE_OVER: "max-calls"}.get(outcome.failure.why)
            most = addresses[by].max_calls if by in addresses else None
            if kind is None and most is not None:
                used = sum(_count(call) for call in solution["calls"] if _by(call, clients) == by)
                kind = "max-calls" if used > most else None
            text = f"call {index + 1} of its solution, {each['function']}, fails: {outcome.failure.text}"
            if outcome.failure.raised_at:
                text += f" (raised at {outcome.failure.raised_at})"
            raise RefusedError(kind or "solution-fails", text)
    if solution["answer"]:
        await send("submit_answer", session_id=session_id, answer=solution["answer"])


def _by(call: Mapping[str, Any], clients: frozenset[str]) -> str:
    """Return the name of the participant that makes a call of a solution."""
    by: str = CLIENT if call["function"] in clients else call["by"]
    return by


def _count(call: Mapping[str, Any]) -> int:
    return 1 + len(read_nested(call["kwargs"])[1])
