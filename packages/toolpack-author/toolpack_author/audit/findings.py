"""Findings: what the attempts that have passed say of a task.

Pure. A finding names the attempt that shows it, so that anybody can repeat it. A fault is wrong for certain;
a weakness may be meant so.
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
    """Something that was found out about a task.

    Attributes:
        kind: As docs/write/tasks.md names it.
        fault: Else it is a weakness.
        text: What was tried, and what that shows.
        calls: Those of the attempt that shows it.
        answer: The answer of that attempt.
        about: What of the task it is about, by which it is known again; "" if there can be only one of its kind.
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
    """What is known of a task after its attempts.

    Attributes:
        calls: The solution's; None if it has none.
        changing: The places of those of them that change something.
        says: Whether the solution has an answer.
        solved: The verdict on the solution.
        guards: The names of checks of what the task isn't about, which attempts needn't fail.
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
    """Get what is wrong with a task so that every further finding would follow from it."""
    if tried.solved is not None and not tried.solved["passed"]:
        failed = [check for check in tried.solved["checks"] if not check["passed"]]
        why = f"reward {tried.solved['reward']}"
        if failed:
            why = f"{failed[0]['name']}: {failed[0]['detail']}".rstrip(": ")
        text = f"its solution doesn't pass ({why})"
        return AuditFinding("solution-fails", True, text, _plain(tried.calls or ()))
    if not tried.nothing["passed"]:
        return None
    does = bool(tried.changing) or tried.says
    if not tried.nop_passes:
        return AuditFinding("nothing-passes", True, "passes with nothing done: tighten the evaluator")
    if does:
        text = "passes with nothing done, though its solution changes or says something"
        return AuditFinding("nothing-passes", True, text)
    if tried.calls:
        return AuditFinding("nothing-passes", False, "passes with nothing done, though its solution has calls")
    return None


def findings(tried: AuditedTask) -> list[AuditFinding]:
    """Get what attempts have shown."""
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
    """Get the attempts that have passed without doing the task."""
    return [each for each in tried.results if each.attempt.kind in kinds and each.passed and each.world != EQUAL]


def _finding(tried: AuditedTask, kind: str, result: AttemptResult, *, fault: bool, more: str = "") -> AuditFinding:
    attempt = result.attempt
    return AuditFinding(
        kind, fault, f"passes: {attempt.what}{more}", _plain(whole(tried, attempt)), attempt.answer, attempt.about
    )


def whole(tried: AuditedTask, attempt: Attempt) -> Calls:
    """Get all calls of an attempt."""
    return (*(tried.calls or ())[: attempt.start], *attempt.calls)


def _plain(calls: Calls) -> list[dict[str, Any]]:
    """Get calls as `run_function` takes them at the agent's address; those of others say whose they are."""
    return [
        {"function": function, "kwargs": kwargs, **({} if by == AGENT else {"by": by})}
        for function, kwargs, by in calls
    ]


def _failures(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Find evaluators and rewards that fail, each once."""
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
    """Find tasks that an answer alone passes."""
    for kind, named in _BY_ANSWER.items():
        for result in [] if tried.nothing["passed"] else [each for each in tried.results if each.attempt.kind == kind]:
            if result.passed:
                yield _finding(tried, named, result, fault=True)


def _unneeded(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Find calls that aren't needed, then arguments that aren't looked at."""
    passing = _passing(tried, "read only") or _passing(tried, "omit")
    unneeded = set()
    for result in passing:
        place = result.attempt.place
        unneeded |= {*tried.changing} if place is None else {place}
        yield _finding(tried, "call-unneeded", result, fault=result.world == DIFFERENT)
    arguments: dict[str, list[AttemptResult]] = {}
    for result in tried.results:
        shows = not result.refused and (result.verdict is not None or result.failure)
        if result.attempt.kind == "argument" and result.attempt.place not in unneeded and shows:
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
            if result.attempt.place not in unneeded and not result.refused:
                yield _finding(tried, named, result, fault=False)
                if kind == "harm":
                    break


def _answers(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Find answers that aren't looked at."""
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
    """Find what is refused because of how it is spelled, and wrong answers that pass as they contain the right one."""
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
    """Find tasks that are passed by calling without a thought; who happens to have done the task isn't meant."""
    calls = tried.calls or ()
    needed = [calls[place] for place in tried.changing]
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
    """Get the names of the checks that no attempt has failed."""
    verdicts = [result.verdict for result in tried.results if result.verdict is not None]
    failing = {check["name"] for verdict in verdicts for check in verdict["checks"] if not check["passed"]}
    return [check["name"] for check in (tried.solved["checks"] if tried.solved else ()) if check["name"] not in failing]


def _checks(tried: AuditedTask) -> Iterator[AuditFinding]:
    """Find checks that never fail, and rewards outside of their range."""
    for name in never_failing(tried):
        if name not in tried.guards:
            yield AuditFinding("dead-check", False, f"no attempt fails the check {name!r}", about=name)
    for result in tried.results:
        reward = (result.verdict and result.verdict["reward"]) or 0
        if not 0 <= reward <= 1:
            text = f"{result.attempt.what}: the reward is {reward:g}, not between 0 and 1"
            calls = _plain(whole(tried, result.attempt))
            yield AuditFinding("reward-range", False, text, calls, result.attempt.answer)
            return
