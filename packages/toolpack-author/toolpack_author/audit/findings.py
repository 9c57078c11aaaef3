"""Findings on a task, derived from the attempts that passed.

These functions have no side effects. A finding includes the attempt that shows it, so that an author can repeat it. A
fault is certainly wrong. A weakness may be intended.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolpack_author.audit.attempts import Attempt, Calls
from toolpack_author.audit.trials import AttemptResult
from toolpack_author.audit.worlds import DIFFERENT, EQUAL, MARKS
from toolpack_server.features.api.core import AGENT
from toolpack_server.features.evaluation.tasks.results import Verdict

SEVERAL = 2  # agents that call at random; a single one may be lucky

_BY_ANSWER = {"echo": "answer-in-prompt", "guess": "answer-guessed", "tools": "leak"}


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A fault or a weakness of a task.

    Attributes:
        kind: The kind, as listed in docs/write/tasks.md.
        fault: True for a fault, False for a weakness.
        text: Description of the attempt and of the problem.
        calls: The calls of the attempt that shows it.
        answer: The answer of that attempt.
        about: The part of the task, to recognise the finding in a later audit; "" if its kind occurs only once.
    """

    kind: str
    fault: bool
    text: str
    calls: Sequence[Mapping[str, Any]] = ()
    answer: str = ""
    about: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def level(self) -> str:
        return "fault" if self.fault else "weakness"


@dataclass(frozen=True, slots=True)
class AuditedTask:
    """A task with the results of its attempts.

    Attributes:
        calls: The solution's calls; None if there is no solution.
        changing: Indexes of the calls that change something.
        says: Whether the solution has an answer.
        nop_passes: Whether the author declared that doing nothing passes.
        nothing: The verdict on doing nothing.
        solved: The verdict on the solution.
        guards: Names of checks that protect unrelated data. Attempts needn't fail them.
    """

    calls: Calls | None
    changing: Sequence[int]
    says: bool
    nop_passes: bool
    nothing: Verdict
    solved: Verdict | None
    results: Sequence[AttemptResult]
    guards: Collection[str] = ()


def first_finding(tried: AuditedTask) -> AuditFinding | None:
    """Return a finding that makes all further findings pointless; None if there is none."""
    if tried.solved is not None and not tried.solved["passed"]:
        failed = [check for check in tried.solved["checks"] if not check["passed"]]
        why = f"reward {tried.solved['reward']}"
        if failed:
            why = f"{failed[0]['name']}: {failed[0]['detail']}".rstrip(": ")
        text = f"its solution doesn't pass ({why}){'' if tried.says else '; it submits no answer'}"
        return AuditFinding("solution-fails", True, text, _plain(tried.calls or ()))
    if not tried.nothing["passed"]:
        return None
    does = bool(tried.changing) or tried.says
    if not tried.nop_passes:
        return AuditFinding("nothing-passes", True, "passes with nothing done: tighten the evaluator")
    if does:
        text = "passes with nothing done, though its solution changes something or has an answer"
        return AuditFinding("nothing-passes", True, text)
    if tried.calls:
        return AuditFinding("nothing-passes", False, "passes with nothing done, though its solution has calls")
    return None


def findings(tried: AuditedTask) -> list[AuditFinding]:
    """Return the findings on a task."""
    first = first_finding(tried)
    if first is not None:
        return [first]
    return [
        *_failures(tried),
        *_by_answer(tried),
        *_unneeded(tried),
        *_answers(tried),
        *_spellings(tried),
        *_careless(tried),
        *_checks(tried),
    ]


def _passing(tried: AuditedTask, *kinds: str) -> list[AttemptResult]:
    """Return the attempts of some kinds that passed without doing the task."""
    return [each for each in tried.results if each.attempt.kind in kinds and each.passed and each.world != EQUAL]


def _finding(tried: AuditedTask, kind: str, result: AttemptResult, *, fault: bool, more: str = "") -> AuditFinding:
    attempt = result.attempt
    return AuditFinding(
        kind, fault, f"passes: {attempt.what}{more}", _plain(whole(tried, attempt)), attempt.answer, attempt.about
    )


def whole(tried: AuditedTask, attempt: Attempt) -> Calls:
    """Return all calls of an attempt, including those of the solution before it."""
    return (*(tried.calls or ())[: attempt.start], *attempt.calls)


def _plain(calls: Calls) -> list[dict[str, Any]]:
    """Return calls as parameters of `run_function` at the agent path, with `by` for calls of other participants."""
    return [
        {"function": function, "kwargs": kwargs, **({} if by == AGENT else {"by": by})}
        for function, kwargs, by in calls
    ]


def _failures(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Yield failing evaluators and rewards, one finding of each kind."""
    seen = set()
    for result in tried.results:
        if result.failure:
            kind = "reward-fails" if result.not_finite else "evaluator-fails"
            if kind not in seen:
                seen.add(kind)
                attempt = result.attempt
                text = f"{attempt.what}: {result.failure}"
                yield AuditFinding(kind, True, text, _plain(whole(tried, attempt)), attempt.answer)


def _by_answer(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Yield findings on answers that pass the task without any call."""
    for kind, named in _BY_ANSWER.items():
        for result in [] if tried.nothing["passed"] else [each for each in tried.results if each.attempt.kind == kind]:
            if result.passed:
                yield _finding(tried, named, result, fault=True)


def _unneeded(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Yield unneeded calls, then unchecked arguments."""
    passing = _passing(tried, "read only") or _passing(tried, "omit")
    unneeded = set()
    for result in passing:
        index = result.attempt.index
        unneeded |= {*tried.changing} if index is None else {index}
        yield _finding(tried, "call-unneeded", result, fault=result.world == DIFFERENT)
    arguments: dict[str, list[AttemptResult]] = {}
    for result in tried.results:
        shows = not result.refused and (result.verdict is not None or result.failure)
        if result.attempt.kind == "argument" and result.attempt.index not in unneeded and shows:
            arguments.setdefault(result.attempt.about, []).append(result)
    for results in arguments.values():
        telling = [each for each in results if not (each.passed and each.world == EQUAL)]
        if telling and all(each.passed for each in telling):
            result = next((each for each in telling if each.world == DIFFERENT), telling[0])
            name = result.attempt.names
            if name is None or result.world == MARKS:
                yield _finding(tried, "argument-free", result, fault=False)
            else:
                yield _finding(tried, "argument-unchecked", result, fault=True, more=f"; the prompt names {name!r}")
    for kind, named in (("repeat", "repeat-unnoticed"), ("harm", "harm-unnoticed")):
        for result in _passing(tried, kind):
            if result.attempt.index not in unneeded and not result.refused:
                yield _finding(tried, named, result, fault=False)
                if kind == "harm":
                    break


def _answers(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Yield unchecked answers."""
    if not tried.says or tried.nothing["passed"]:
        return
    empty = [each for each in tried.results if each.attempt.kind == "empty" and each.passed]
    wrong = [each for each in tried.results if each.attempt.kind == "wrong"]
    if empty or (wrong and all(each.passed for each in wrong)):
        yield _finding(tried, "answer-unchecked", (empty or wrong)[0], fault=not tried.changing)
    else:
        for result in [each for each in tried.results if each.attempt.kind == "dump" and each.passed]:
            yield _finding(tried, "answer-dump", result, fault=False)


def _spellings(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Yield refused spellings of the solution, and wrong answers that pass because they contain the right one."""
    is_read = not all(each.passed for each in tried.results if each.attempt.kind == "wrong")
    for result in tried.results:
        attempt = result.attempt
        if attempt.kind == "respelled" and result.verdict is not None and not result.passed and not result.refused:
            failed = next((check["name"] for check in result.verdict["checks"] if not check["passed"]), "")
            text = f"doesn't pass: {attempt.what}{f' ({failed})' if failed else ''}"
            calls = _plain(whole(tried, attempt))
            yield AuditFinding("spelling-refused", attempt.about == "calls", text, calls, attempt.answer, attempt.about)
        elif attempt.kind == "containing" and result.passed and is_read:
            is_number = any(map(str.isdigit, attempt.answer))
            yield _finding(tried, "answer-within", result, fault=is_number and not tried.changing)


def _careless(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Yield a finding if careless calls pass the task, unless they happened to do it."""
    calls = tried.calls or ()
    needed = [calls[index] for index in tried.changing]
    passing = [
        each
        for each in _passing(tried, "everything", "random")
        if not needed or not all(call in each.attempt.calls for call in needed)
    ]
    if passing and not (tried.nothing["passed"] and not any(each.changed for each in passing)):
        lucky = len(passing) < SEVERAL and passing[0].attempt.kind == "random"
        sure = not lucky and not tried.nothing["passed"] and any(each.world == DIFFERENT for each in passing)
        yield _finding(tried, "no-work", passing[0], fault=sure)


def never_failing(tried: AuditedTask) -> list[str]:
    """Return the names of the checks that no attempt failed."""
    verdicts = [result.verdict for result in tried.results if result.verdict is not None]
    failing = {check["name"] for verdict in verdicts for check in verdict["checks"] if not check["passed"]}
    return [check["name"] for check in (tried.solved["checks"] if tried.solved else ()) if check["name"] not in failing]


def _checks(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Yield checks that never fail, and rewards outside of their range."""
    for name in never_failing(tried):
        if name not in tried.guards:
            text = f"no attempt fails the check {name!r}: find out why before you delete it"
            yield AuditFinding("dead-check", False, text, about=name)
    for result in tried.results:
        reward = (result.verdict and result.verdict["reward"]) or 0
        if not 0 <= reward <= 1:
            text = f"{result.attempt.what}: the reward is {reward:g}, not between 0 and 1"
            calls = _plain(whole(tried, result.attempt))
            yield AuditFinding("reward-range", False, text, calls, result.attempt.answer)
            return
