"""Execution of attempts at a task.

The task's solution runs in real sessions, at the agent path. Attempts run without sessions, with the same snapshots,
functions, evaluators and limits. This is much faster, because nothing is stored. Only attempts at a task with events
also run in sessions.

Each call and each evaluation has a deadline. Calls and evaluations run on the main thread, because there a signal can
interrupt them when the deadline passes.
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
from toolpack_author.audit.values import is_spoken_in, leaves
from toolpack_author.audit.worlds import DIFFERENT, EQUAL, MARKS, at, changed_marks, difference
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

MAX_CACHED_WORLDS = 50  # of one task, as JSON
MAX_CONTAINERS, MAX_DEPTH = 50, 4  # max number of containers of a world that are emptied, and max depth of their paths
CLOCK_NS = 1_767_225_600 * 10**9  # 2026-01-01: the pinned time

Announce = Callable[[str, float], None]
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
    """The state after some calls: the world of each version, and the records of the calls.

    `Trials` stores the stage after each of the solution's calls. An attempt continues from one of them.
    """

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
        verdict: The verdict, or None if the evaluator failed or a call missed its deadline.
        failure: Why the evaluator returned no verdict. "" if it returned a verdict, or if a call missed its deadline.
        not_finite: Whether the reward isn't a finite number.
        refused: Whether the call that differs from the solution's call failed or changed nothing. For the kind
            `respelled`, whether any call failed.
        world: How the attempt's world differs from the solution's world. It is computed only if the attempt passed.
        changed: Whether the attempt's calls created a version.
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
    """Codec that skips the decoding of objects that the last call left in memory.

    If `objects` holds the object of a part, the part's next reader gets this object. Each object is returned only once,
    because its reader might change it.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.objects: dict[str, tuple[bytes, BaseModel]] = {}  # by part: the bytes and the equal object

    @override
    def decode(self, part: str, blob_id: str, blob: bytes) -> BaseModel:
        if part in self.objects and self.objects[part][0] is blob:
            return self.objects.pop(part)[1]
        return super().decode(part, blob_id, blob)


class Trials:
    """The trials of one task.

    The constructor plays the task in two sessions and once without a session. If the worlds of the two sessions differ,
    later calls run with a pinned clock and pinned random numbers. If verdicts differ, `unstable` is set.

    Args:
        service: The service that creates the sessions.
        name: The task's full name.
        task: The task.
        announce: Called before toolpacks' code runs.
        run_coroutine: Runs a coroutine on the service's event loop.
        list_functions: Returns the functions in toolpacks with their descriptions.
        ignore: JSON Pointers to parts of the world that are ignored in comparisons.
        clients: Functions that the client calls in solutions, not an agent.

    Attributes:
        task: The task.
        prompt: The prompt as one string.
        functions: The descriptions of the agent's functions, by name.
        calls: The solution's calls, or None without a solution.
        answer: The solution's answer.
        changing: Indexes of the agent's calls in the solution that created a version.
        nop_verdict: The verdict on doing nothing.
        solution_verdict: The verdict on the solution. None without a solution.
        unstable: Why verdicts are unreliable. "" if they are reliable.
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
        announce: Announce,
        run_coroutine: Callable[[Any], Any],
        list_functions: Callable[[tuple[str, ...]], Sequence[tuple[PackFunction, Mapping[str, Any]]]],
    ) -> None:
        self.name, self.task = name, task
        self.unstable, self._is_overdue = "", False
        self._service, self._clients, self._announce, self._run_coroutine = service, clients, announce, run_coroutine
        self._ignore = [jsonpointer.JsonPointer(pointer) for pointer in ignore]
        self._seconds = service.settings.timeout_seconds
        self._deadline = task.timeout_seconds or self._seconds
        limit = service.settings.max_environment_bytes
        self._codec = _TrialCodec(service.context.catalog, limit, service.codec.volumes)
        self._context = ExecutionContext(self._codec, service.settings.max_result_bytes)
        self._worlds: dict[tuple[bytes, ...], Any] = {}
        self._pinned = False
        self._slow: set[str] = set()
        # Two evaluations in one session reveal an unstable evaluator. A second session reveals unstable functions.
        first, second = self._session(2), self._session(1)
        self._moving = MovingSessions(service, name) if first.moves else None
        initial = first.evidence.initial
        self._start = Stage((initial,))
        self._evidence = replace(first.evidence, initial=initial, final=initial)
        if first.worlds != second.worlds and not first.moves:
            self._pin()
        self._describe(first, list_functions(self._evidence.toolpacks))
        self.calls: Calls | None
        self.calls, self.answer = (None, "") if task.solution is None else self._solution()
        toolpacks, runtime = self._evidence.toolpacks, service.context.runtime
        self._runtimes = {name: runtime(toolpacks, each.functions) for name, each in first.addresses.items()}
        self._runtimes[CLIENT] = runtime(toolpacks, None)
        self._max_calls = {name: each.max_calls for name, each in first.addresses.items()} | {CLIENT: None}
        self._stages = [self._start]
        for each in self.calls or ():
            self._stages.append(self._call(self._stages[-1], each))
        versions = [len(stage.snapshots) for stage in self._stages]
        changing = [index for index in range(len(versions) - 1) if versions[index + 1] > versions[index]]
        self.changing = [index for index in changing if self.calls and self._is_change(self.calls[index])]
        self.nop_verdict, self.solution_verdict = first.nop_verdict, first.solution_verdict
        self._compare(first, second)

    # In sessions

    def _session(self, evaluations: int) -> "_SessionVerdicts":
        """Play the task in a new session, and evaluate each of its states `evaluations` times."""
        run_options = self._clients, self._announce, self._run_coroutine
        return in_session(self._service, self.name, self.task, *run_options, evaluations=evaluations)

    def _compare(self, first: "_SessionVerdicts", second: "_SessionVerdicts") -> None:
        """Set `unstable` if the verdicts of two sessions and those without a session differ."""
        if first.unstable or second.unstable:
            self.unstable = "a second evaluation gives another verdict"
        elif first.stable_parts() != second.stable_parts():
            self.unstable = "a second session gives another verdict"
        else:
            mine = [self.judge(self._start, "")]
            if self.calls is not None:
                mine.append(self.judge(self._stages[-1], self.answer))
            theirs = [each for each in (first.nop_verdict, first.solution_verdict) if each is not None]
            if [stable_parts(each) for each in mine] != [stable_parts(each) for each in theirs]:
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
        initial = _unseal(context.codec, initial)
        self._evidence = replace(evidence, initial=initial, final=initial)
        self._start = Stage((initial,))

    def _describe(
        self, session: "_SessionVerdicts", list_functions: Sequence[tuple[PackFunction, Mapping[str, Any]]]
    ) -> None:
        """Set the prompt, the agent's functions and the initial world, from which attempts are made."""
        prompt = self.task.prompt
        self.prompt = prompt if isinstance(prompt, str) else "\n".join(each["content"] for each in prompt)
        self.functions = {
            each.name: shown for each, shown in list_functions if _is_offered(each, session.addresses[AGENT].functions)
        }
        self.initial = self._world(self._start)

    def _is_change(self, plain_call: PlainCall) -> bool:
        """Return whether a new version is the agent's change. If the call is read-only, an event made the change."""
        described = self.functions.get(plain_call[0])
        return plain_call[2] == AGENT and not (described and described["read_only"])

    def _solution(self) -> tuple[Calls, str]:
        """Return the calls and the answer of the task's solution, which can depend on the initial world."""
        solution = solve(self.name, self._evidence, self._context)
        calls = ((each["function"], each["kwargs"], _by(each, self._clients)) for each in solution["calls"])
        return tuple(calls), solution["answer"]

    # Without sessions

    def attempts(self, attempts: Iterable[Attempt]) -> Iterator[AttemptResult]:
        """Run attempts and yield their results.

        Stop after the evaluator has missed its deadline, because it might miss the deadline each time.
        """
        for attempt in attempts:
            result = self._attempt(attempt)
            yield result
            if self._is_overdue:
                return

    def _attempt(self, attempt: Attempt) -> AttemptResult:
        """Run an attempt.

        The result's `verdict` is None if a call missed its deadline, if the attempt calls a function that missed its
        deadline before, or if the evaluator failed.
        """
        try:
            stage = self._stages[attempt.start]
        except IndexError:
            return AttemptResult(attempt)
        refused, first, live = False, stage, dict[str, Any]()
        for number, each in enumerate(attempt.calls):
            # The solution's own calls are in time, even if the function was late with other arguments.
            if each[0] in self._slow and each not in (self.calls or ()):
                return AttemptResult(attempt)
            stage = self._call(stage, each, live)
            if number == 0:  # the call that differs from the solution's
                refused, first = stage.refused, stage
            if attempt.kind == "respelled":
                refused |= stage.refused
            if stage.late:
                self._slow.add(each[0])
                return AttemptResult(attempt)
        changed = len(stage.snapshots) > 1
        try:
            self._hand_over(stage, live)
            verdict = self.judge(stage, attempt.answer, attempt.kind)
        except (RequestError, Interrupted) as error:
            self._is_overdue |= isinstance(error, Interrupted)
            late = f"The evaluator of {self.name!r} took longer than {self._deadline:g} s."
            failure = late if isinstance(error, Interrupted) else for_author(error)
            not_finite = isinstance(error, EvaluationError) and error.not_finite
            return AttemptResult(attempt, None, failure, not_finite, refused, DIFFERENT, changed)
        if attempt.kind == "argument" and not verdict["passed"]:  # a call that changed nothing counts as refused
            refused |= self._is_as_before(self._stages[attempt.start], first)
        world = self._difference(stage) if verdict["passed"] else DIFFERENT
        return AttemptResult(attempt, verdict, "", False, refused, world, changed)

    def _hand_over(self, stage: Stage, live: Mapping[str, Any]) -> None:
        """Pass the objects that the last call wrote to the evaluator, which then needn't decode them."""
        blobs = stage.snapshots[-1].blobs
        self._codec.objects = {part: (blobs[part], live[part]) for part in stage.written & live.keys()}

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
            path=copy.deepcopy(stage.path),  # an evaluator may change the records, which other attempts use
            answer=answer,
            at=versions.__getitem__,
        )
        self._announce(f"the evaluator, after {what or 'the solution'}", self._deadline)
        with deadline(self._deadline):
            return evaluate(self.name, evidence, self._context)

    def minimal(self, results: Iterable[AttemptResult]) -> list[int]:
        """Return the indexes of a minimal set of the solution's calls that still passes.

        Calls are omitted one by one from the end.

        Args:
            results: Results of attempts, which aren't run again.
        """
        calls = self.calls or ()
        passed_by_key = {
            dumps((calls[: each.attempt.start] + each.attempt.calls, each.attempt.answer)): each.passed
            for each in results
            if each.attempt.kind in {"omit", "read only"}
        }
        remaining = [*range(len(calls))]
        for index in reversed(range(len(calls))):
            without = [each for each in remaining if each != index]
            key = dumps((tuple(calls[each] for each in without), self.answer))
            if passed_by_key[key] if key in passed_by_key else self._passes_with(without, index):
                remaining = without
        return remaining

    def _passes_with(self, indexes: Sequence[int], omitted: int) -> bool:
        """Return whether the solution passes with only some of its calls.

        Args:
            indexes: The indexes of the calls to make.
            omitted: The index of the first call that is left out. All calls before it are made.
        """
        stage, live = self._stages[omitted], dict[str, Any]()
        for each in indexes:
            if each > omitted:
                stage = self._call(stage, (self.calls or ())[each], live)
        with contextlib.suppress(EvaluationError, Interrupted):
            return not stage.late and self.judge(stage, self.answer)["passed"]
        return False

    def _call(self, stage: Stage, plain_call: PlainCall, live: dict[str, Any] | None = None) -> Stage:
        """Run a call with its participant's permissions, and return the stage after it.

        Args:
            live: Decoded objects of the stage's world, by part. The call's objects are added, so that the next call
                needn't decode them. None if there are none.
        """
        function, kwargs, by = plain_call
        if self._moving is not None:
            return self._call_in_session(self._moving, stage, plain_call)
        live = {} if live is None or self._pinned else live
        snapshot = stage.snapshots[-1]
        plan = self._runtimes[by].plan(function, loads(dumps(kwargs)))
        # Calls that are written as arguments of this call count, too.
        used, max_calls = stage.used.get(by, 0) + 1 + len(plan.nested), self._max_calls[by]
        if max_calls is not None and used > max_calls:
            return replace(stage, refused=True)
        if self._pinned:
            plan.policy = _pin(plain_call, stage.path)
        plan.compares = False
        self._announce(f"`{function}`", plan.timeout_seconds)
        with deadline(plan.timeout_seconds) as state:
            outcome = call(plan, Snapshot(snapshot.parts, snapshot.blobs, live), self._context)
        if state.late:
            return replace(stage, refused=True, late=True)
        failure, results = outcome.failure, outcome.nested
        call_record: dict[str, Any] = {
            "function": function,
            "kwargs": kwargs,
            "result": "" if outcome.result is None else loads(outcome.result),
            "error": failure.text if failure else None,
            "by": by,
        }
        if plan.nested:
            call_record["nested"] = [
                {
                    "function": each.function,
                    "kwargs": each.arguments,
                    "result": loads(results[number]) if number < len(results) else "",
                    "error": None if number < len(results) else call_record["error"],
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
        record = SeenRecord(len(snapshots) - 1, call_record, None, None)
        used_now = {**stage.used, by: used}
        return Stage(snapshots, (*stage.path, record), used_now, failure is not None, written=frozenset(outcome.blobs))

    def _call_in_session(self, sessions: MovingSessions, stage: Stage, plain_call: PlainCall) -> Stage:
        """Run a call of an attempt at a task with events, in a session that has made the stage's calls."""
        calls = (*stage.calls, plain_call)
        self._announce(f"`{plain_call[0]}`, and events", 2 * self._seconds)
        session_state = self._run_coroutine(sessions.call(calls, len(stage.snapshots)))
        return Stage(
            (*stage.snapshots, *session_state.snapshots), session_state.path, refused=session_state.failed, calls=calls
        )

    # Worlds

    def _world(self, stage: Stage) -> Any:
        """Return the world of a stage as JSON, without the ignored parts."""
        key = _content(stage)
        if key not in self._worlds:
            world = loads(view(self._codec, stage.snapshots[-1]))
            for pointer in self._ignore:
                with contextlib.suppress(jsonpointer.JsonPointerException, LookupError, TypeError):
                    holder, last = pointer.to_last(world)
                    del holder[last]
            if len(self._worlds) == MAX_CACHED_WORLDS:
                self._worlds.clear()
            self._worlds[key] = world
        return self._worlds[key]

    def _is_as_before(self, before: Stage, after: Stage) -> bool:
        """Return whether a stage has the same world as an earlier one."""
        return _content(before) == _content(after) or self._world(before) == self._world(after)

    def _difference(self, stage: Stage) -> str:
        """Return how the world of a stage differs from the solution's world."""
        if self.calls is None:
            return DIFFERENT
        solved_stage = self._stages[-1]
        if _content(solved_stage) == _content(stage):
            return EQUAL
        worlds = self._world(solved_stage), self._world(stage)
        kind = difference(*worlds)
        return difference(*worlds, self._relevant_marks) if kind == MARKS else kind

    @cached_property
    def _relevant_marks(self) -> frozenset[str]:
        """Names of boolean fields that the task is about, because its solution sets them or its prompt names them.

        An agent might make a call only for its result. A boolean that such a call sets, such as "read", is then only a
        side effect, and isn't included.
        """
        relevant = set[str]()
        for index in self.changing:
            before, after = self._stages[index], self._stages[index + 1]
            names = changed_marks(self._world(before), self._world(after))
            _, kwargs, _ = (self.calls or ())[index]
            sets_boolean = any(isinstance(value, bool) for _, _, value in leaves(kwargs, "", ()))
            last_call = after.path[-1].call or {}
            is_silent = last_call.get("result") is None or isinstance(last_call["result"], bool)
            relevant |= {name for name in names if sets_boolean or (is_silent and is_spoken_in(self.prompt, name))}
        return frozenset(relevant)

    # Unrelated data

    def guards(self) -> set[str]:
        """Return the names of the checks that protect unrelated data.

        A check is a guard if it fails when data that the solution leaves unchanged is emptied. After a missed deadline,
        no more data is emptied.
        """
        failing = set[str]()
        solved_stage = self._stages[-1]
        snapshot = solved_stage.snapshots[-1]
        for part, path in [*self._containers(snapshot)][:MAX_CONTAINERS]:
            whole = self._codec.decode(part, snapshot.parts[part], snapshot.blobs[part])
            container: Any = whole
            for name in path:
                container = getattr(container, name)
            container.clear()
            changed = _with_blobs(snapshot, {part: self._codec.encode(part, whole)})
            if not self._add_failing(failing, changed, ".".join(path)):
                return failing
        for name, changed in itertools.islice(self._emptied_volumes(snapshot), MAX_CONTAINERS):
            if not self._add_failing(failing, changed, name):
                return failing
        return failing

    def _add_failing(self, failing: set[str], changed: Snapshot, name: str) -> bool:
        """Add the names of the checks that fail on a world with emptied data. Return False after a missed deadline."""
        solved_stage = self._stages[-1]
        stage = replace(solved_stage, snapshots=(*solved_stage.snapshots[:-1], changed))
        try:
            verdict = self.judge(stage, self.answer, f"the solution, without {name}")
        except EvaluationError:
            return True
        except Interrupted:
            return False
        failing |= {check["name"] for check in verdict["checks"] if not check["passed"]}
        return True

    def _emptied_volumes(self, snapshot: Snapshot) -> Iterator[tuple[str, Snapshot]]:
        """Yield a copy of the solved world for each table and top-level entry that the solution leaves unchanged.

        In this copy, the rows of the table, the file, or the files of the folder are deleted.
        """
        for toolpack in dict.fromkeys(toolpack_of(part) for part in snapshot.parts if is_piece(part)):
            for name, entry in self._unchanged(toolpack, snapshot):
                volumes = Volumes(self._codec, read_only="")
                try:
                    volumes.bind(toolpack, None, snapshot)
                    _empty(volumes.bound[name], entry)
                    changes = volumes.finish()
                except Exception:  # noqa: BLE001, S112 - a schema can refuse the change
                    continue
                finally:
                    volumes.abandon(keep=False)
                yield f"{name}/{entry}", _with_blobs(snapshot, changes.blobs)

    def _unchanged(self, toolpack: str, snapshot: Snapshot) -> list[tuple[str, str]]:
        """Return the unchanged tables and top-level entries of a toolpack's volumes, with their volumes' names."""
        first, last = (Volumes(self._codec, read_only=READING) for _ in range(2))
        try:
            first.bind(toolpack, None, self._start.snapshots[-1])
            last.bind(toolpack, None, snapshot)
            return [
                (name, entry)
                for name, volume in last.bound.items()
                if name in first.bound
                for entry in _unchanged_names(first.bound[name], volume)
            ]
        except Exception:  # noqa: BLE001 - unreadable data can't be compared
            return []
        finally:
            first.abandon()
            last.abandon()

    def _containers(self, snapshot: Snapshot) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the part and the path of each list, dictionary and set that the solution leaves unchanged.

        Empty containers are left out.
        """
        initial, solved = self._world(self._start), self._world(self._stages[-1])
        for part, blob_id in snapshot.parts.items():
            if is_piece(part):
                continue
            pending: list[tuple[tuple[str, ...], Any]] = [((), self._codec.decode(part, blob_id, snapshot.blobs[part]))]
            while pending:
                path, value = pending.pop()
                if isinstance(value, BaseModel) and len(path) < MAX_DEPTH:
                    pending += [((*path, name), member) for name, member in vars(value).items()]
                elif isinstance(value, list | dict | set) and value:
                    before, after = (at(world, (toolpack_of(part), *path)) for world in (initial, solved))
                    if before == after is not None:  # equal, and neither missing nor ignored
                        yield part, path


def _with_blobs(snapshot: Snapshot, blobs: Mapping[str, tuple[str, bytes]]) -> Snapshot:
    """Return a snapshot with other blobs for some parts."""
    parts = {**snapshot.parts, **{part: blob_id for part, (blob_id, _) in blobs.items()}}
    return Snapshot(parts, {**snapshot.blobs, **{part: blob for part, (_, blob) in blobs.items()}})


def _unchanged_names(before: Any, after: Any) -> list[str]:
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


def stable_parts(verdict: Verdict | None) -> Any:
    """Return the stable parts of a verdict. Details are left out because they can contain a session's random values."""
    if verdict is None:
        return None
    checks = sorted((check["name"], check["passed"]) for check in verdict["checks"])
    return [verdict["reward"], verdict["passed"], [[*check] for check in checks], verdict["metrics"]]


def _unseal(codec: Codec, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without seals. It needs none, because it never leaves this process."""
    return Snapshot(snapshot.parts, {part: unseal_part(codec, snapshot, part) for part in snapshot.parts})


def _is_offered(function: PackFunction, offered: frozenset[str] | None) -> bool:
    return offered is None or is_offered(function, offered)


def _pin(plain_call: PlainCall, path: Sequence[SeenRecord]) -> PinnedClock:
    """Return the pinned clock and seed of a call.

    They don't depend on the call's index, because attempts leave out calls. They depend on the number of equal calls
    before, so a repeated call gets other random numbers.
    """
    before = sum((each.call["function"], each.call["kwargs"]) == plain_call[:2] for each in path if each.call)
    return PinnedClock(1, f"{before} {dumps(plain_call).decode()}", CLOCK_NS)


# Sessions


@dataclass(frozen=True, slots=True)
class _SessionVerdicts:
    """The verdicts and worlds in a task's session, before any call and after the solution."""

    evidence: Evidence
    addresses: Mapping[str, Address]  # by name of the participant
    nop_verdict: Verdict
    solution_verdict: Verdict | None
    worlds: Any
    unstable: bool
    moves: bool

    def stable_parts(self) -> list[Any]:
        return [stable_parts(self.nop_verdict), stable_parts(self.solution_verdict)]


def in_session(
    service: Service,
    name: str,
    task: Task,
    clients: frozenset[str],
    announce: Announce,
    run_coroutine: Callable[[Any], Any],
    *,
    evaluations: int,
) -> _SessionVerdicts:
    """Evaluate a task in a session, before any call and after the solution.

    Raises:
        RefusedError: The task can't be tried.
    """
    session: _SessionVerdicts = run_coroutine(_in_session(service, name, task, clients, announce, evaluations))
    return session


async def _in_session(
    service: Service, name: str, task: Task, clients: frozenset[str], announce: Announce, evaluations: int
) -> _SessionVerdicts:
    async def send(method: str, **params: Any) -> Any:
        try:
            return await service.request(Caller(), method, params)
        except ReplyError as error:
            raise RefusedError(refusal, (error.data or {}).get("detail") or error.message) from None

    async def evaluate_once() -> Verdict:
        try:
            return await service.feature(Tasks).evaluate(session_id, "")
        except RequestError as error:
            not_finite = isinstance(error, EvaluationError) and error.not_finite
            raise RefusedError("reward-fails" if not_finite else "evaluator-fails", for_author(error)) from None

    refusal = "session-refused"  # the kind of the finding if the next request fails
    call_seconds = service.settings.timeout_seconds
    deadline = task.timeout_seconds or call_seconds
    announce("the start of a session", 2 * call_seconds)
    session = await send("create_session", task=name)
    session_id, moves = session["session_id"], "events" in session
    try:
        names = {AGENT, *task.participants}
        addresses = {name: await service.sessions.address(session_id, "", name) for name in names}
        tasks = service.feature(Tasks)
        heavy = service.sessions.heavy_reader
        evidence, _ = await service.sessions.read(lambda _: tasks.evidence(heavy, *heavy.find(session_id, ""), 0, None))
        evidence = replace(
            evidence, initial=_unseal(service.codec, evidence.initial)
        )  # now, because the session is closed below
        announce("the evaluator, after nothing done", 3 * deadline)
        nothing, solved = [await evaluate_once() for _ in range(evaluations)], list[Verdict]()
        worlds = [await send("get_environment", session_id=session_id)]
        if task.solution is not None:
            refusal = "solution-fails"
            announce("the solution", call_seconds)
            await _solve(service, session_id, addresses, clients, send, announce)
            announce("the evaluator, after the solution", 3 * deadline)
            solved = [await evaluate_once() for _ in range(evaluations)]
            worlds.append(await send("get_environment", session_id=session_id))
    finally:
        with contextlib.suppress(RefusedError):
            await send("close_session", session_id=session_id)
    unstable = any(stable_parts(each[0]) != stable_parts(other) for each in (nothing, solved) for other in each[1:])
    return _SessionVerdicts(evidence, addresses, nothing[0], solved[0] if solved else None, worlds, unstable, moves)


async def _solve(
    service: Service,
    session_id: str,
    addresses: Mapping[str, Address],
    clients: frozenset[str],
    send: Callable[..., Any],
    announce: Announce,
) -> None:
    """Run the solution's calls at the agent path, and the client's calls as the client. Then submit the answer.

    Raises:
        RefusedError: A call fails.
    """
    solution = await send("get_solution", session_id=session_id)
    for index, each in enumerate(solution["calls"]):
        announce(f"call {index + 1} of the solution, {each['function']}", 2 * service.settings.timeout_seconds)
        try:
            by = _by(each, clients)
            request = CallRequest(each["function"], each["kwargs"], dumps(each["kwargs"]), by=by)
            outcome = await service.sessions.call(session_id, "", request)
        except RequestError as error:
            raise RefusedError("solution-fails", f"call {index + 1} of its solution is refused: {error}") from None
        if outcome.failure is not None:
            kind = {Failure.NOT_FOUND: "hidden-function", Failure.EPISODE_OVER: "max-calls"}.get(outcome.failure.why)
            max_calls = addresses[by].max_calls if by in addresses else None
            if kind is None and max_calls is not None:
                used = sum(_count(call) for call in solution["calls"] if _by(call, clients) == by)
                kind = "max-calls" if used > max_calls else None
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
    """Return the number of calls in a call: itself, and the calls that are written as its arguments."""
    return 1 + len(read_nested(call["kwargs"])[1])
