"""Findings on a task, derived from the attempts that passed.

These functions have no side effects. A finding includes the attempt that shows it, so that an author can repeat the
attempt. A *fault* is certainly wrong. A *weakness* might be intended.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolpack_author.audit.attempts import Attempt, Calls
from toolpack_author.audit.trials import AttemptResult
from toolpack_author.audit.worlds import DIFFERENT, EQUAL, MARKS
from toolpack_server.features.api.core import AGENT
from toolpack_server.features.evaluation.tasks.results import Verdict

MIN_AGENTS = 2  # if fewer random agents pass, luck might be the reason

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
        about: The part of the task, which identifies the finding in a later audit. "" if its kind occurs only once.
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
        calls: The solution's calls, or None without a solution.
        changing: Indexes of the calls that change something.
        has_answer: Whether the solution has an answer.
        nop_passes: Whether the author declared that doing nothing passes.
        nop_verdict: The verdict on doing nothing.
        solution_verdict: The verdict on the solution.
        guards: Names of checks that protect unrelated data. If no attempt fails such a check, this isn't a finding.
    """

    calls: Calls | None
    changing: Sequence[int]
    has_answer: bool
    nop_passes: bool
    nop_verdict: Verdict
    solution_verdict: Verdict | None
    results: Sequence[AttemptResult]
    guards: Collection[str] = ()


def first_finding(audited: AuditedTask) -> AuditFinding | None:
    """Return a finding that makes all further findings pointless, or None.

    The auditor calls this before it runs attempts. If there is such a finding, no attempts run.
    """
    if audited.solution_verdict is not None and not audited.solution_verdict["passed"]:
        failed = [check for check in audited.solution_verdict["checks"] if not check["passed"]]
        why = f"reward {audited.solution_verdict['reward']}"
        if failed:
            why = f"{failed[0]['name']}: {failed[0]['detail']}".rstrip(": ")
        text = f"its solution doesn't pass ({why}){'' if audited.has_answer else '; it submits no answer'}"
        return AuditFinding("solution-fails", True, text, _plain(audited.calls or ()))
    if not audited.nop_verdict["passed"]:
        return None
    has_work = bool(audited.changing) or audited.has_answer
    if not audited.nop_passes:
        return AuditFinding("nothing-passes", True, "passes with nothing done: tighten the evaluator")
    if has_work:
        text = "passes with nothing done, though its solution changes something or has an answer"
        return AuditFinding("nothing-passes", True, text)
    if audited.calls:
        return AuditFinding("nothing-passes", False, "passes with nothing done, though its solution has calls")
    return None


def findings(audited: AuditedTask) -> list[AuditFinding]:
    """Return the findings on a task."""
    first = first_finding(audited)
    if first is not None:
        return [first]
    return [
        *_failures(audited),
        *_by_answer(audited),
        *_unneeded(audited),
        *_answers(audited),
        *_spellings(audited),
        *_careless(audited),
        *_checks(audited),
    ]


def _passing(audited: AuditedTask, *kinds: str) -> list[AttemptResult]:
    """Return the attempts of some kinds that passed without doing the task.

    An attempt that ends in the solution's world did the task, so it is left out.
    """
    return [each for each in audited.results if each.attempt.kind in kinds and each.passed and each.world != EQUAL]


def _finding(audited: AuditedTask, kind: str, result: AttemptResult, *, fault: bool, more: str = "") -> AuditFinding:
    """Return the finding that an attempt passes. `more` is appended to its text."""
    attempt = result.attempt
    return AuditFinding(
        kind, fault, f"passes: {attempt.what}{more}", _plain(whole(audited, attempt)), attempt.answer, attempt.about
    )


def whole(audited: AuditedTask, attempt: Attempt) -> Calls:
    """Return all calls of an attempt, including the solution's calls with which it begins."""
    return (*(audited.calls or ())[: attempt.start], *attempt.calls)


def _plain(calls: Calls) -> list[dict[str, Any]]:
    """Return calls as parameters of `run_function` at the agent path, with `by` for calls of other participants."""
    return [
        {"function": function, "kwargs": kwargs, **({} if by == AGENT else {"by": by})}
        for function, kwargs, by in calls
    ]


def _failures(audited: AuditedTask) -> Iterator[AuditFinding]:
    """Yield failing evaluators and rewards, one finding of each kind."""
    seen_kinds = set()
    for result in audited.results:
        if result.failure:
            kind = "reward-fails" if result.not_finite else "evaluator-fails"
            if kind not in seen_kinds:
                seen_kinds.add(kind)
                attempt = result.attempt
                text = f"{attempt.what}: {result.failure}"
                yield AuditFinding(kind, True, text, _plain(whole(audited, attempt)), attempt.answer)


def _by_answer(audited: AuditedTask) -> Iterator[AuditFinding]:
    """Yield findings on answers that pass the task without any call."""
    if audited.nop_verdict["passed"]:  # then the same answer passes because nothing needs to be done
        return
    for kind, finding_kind in _BY_ANSWER.items():
        for result in audited.results:
            if result.attempt.kind == kind and result.passed:
                yield _finding(audited, finding_kind, result, fault=True)


def _unneeded(audited: AuditedTask) -> Iterator[AuditFinding]:
    """Yield unneeded calls, then unchecked arguments, then unnoticed repeats and additional changes.

    A call that isn't needed gets no further findings.
    """
    # If the solution passes without all its changes, that finding includes each single change.
    passing = _passing(audited, "read only") or _passing(audited, "omit")
    unneeded = set()
    for result in passing:
        index = result.attempt.index
        unneeded |= {*audited.changing} if index is None else {index}  # None: "read only" omits all changes
        yield _finding(audited, "call-unneeded", result, fault=result.world == DIFFERENT)
    arguments: dict[str, list[AttemptResult]] = {}
    for result in audited.results:
        # The changed call succeeded, and the evaluator ran.
        is_informative = not result.refused and (result.verdict is not None or result.failure)
        if result.attempt.kind == "argument" and result.attempt.index not in unneeded and is_informative:
            arguments.setdefault(result.attempt.about, []).append(result)
    for results in arguments.values():
        # An attempt that passed with the solution's world did the task in another way, so it shows nothing.
        informative = [each for each in results if not (each.passed and each.world == EQUAL)]
        if informative and all(each.passed for each in informative):
            result = next((each for each in informative if each.world == DIFFERENT), informative[0])
            name = result.attempt.named_value
            if name is None or result.world == MARKS:
                yield _finding(audited, "argument-free", result, fault=False)
            else:
                yield _finding(audited, "argument-unchecked", result, fault=True, more=f"; the prompt names {name!r}")
    for kind, finding_kind in (("repeat", "repeat-unnoticed"), ("harm", "harm-unnoticed")):
        for result in _passing(audited, kind):
            if result.attempt.index not in unneeded and not result.refused:
                yield _finding(audited, finding_kind, result, fault=False)
                if kind == "harm":
                    break


def _answers(audited: AuditedTask) -> Iterator[AuditFinding]:
    """Yield a finding if the solution passes without its answer or with wrong answers.

    Else yield a finding if an answer that lists all values of the world passes.
    """
    if not audited.has_answer or audited.nop_verdict["passed"]:
        return
    empty = [each for each in audited.results if each.attempt.kind == "empty" and each.passed]
    wrong = [each for each in audited.results if each.attempt.kind == "wrong"]
    if empty or (wrong and all(each.passed for each in wrong)):
        yield _finding(audited, "answer-unchecked", (empty or wrong)[0], fault=not audited.changing)
    else:
        for result in [each for each in audited.results if each.attempt.kind == "dump" and each.passed]:
            yield _finding(audited, "answer-dump", result, fault=False)


def _spellings(audited: AuditedTask) -> Iterator[AuditFinding]:
    """Yield refused spellings of the solution, and wrong answers that pass because they contain the right one."""
    # If all wrong answers pass, the answer isn't checked at all, which is another finding.
    is_read = not all(each.passed for each in audited.results if each.attempt.kind == "wrong")
    for result in audited.results:
        attempt = result.attempt
        if attempt.kind == "respelled" and result.verdict is not None and not result.passed and not result.refused:
            failed = next((check["name"] for check in result.verdict["checks"] if not check["passed"]), "")
            text = f"doesn't pass: {attempt.what}{f' ({failed})' if failed else ''}"
            calls = _plain(whole(audited, attempt))
            yield AuditFinding("spelling-refused", attempt.about == "calls", text, calls, attempt.answer, attempt.about)
        elif attempt.kind == "containing" and result.passed and is_read:
            is_number = any(map(str.isdigit, attempt.answer))
            yield _finding(audited, "answer-within", result, fault=is_number and not audited.changing)


def _careless(audited: AuditedTask) -> Iterator[AuditFinding]:
    """Yield a finding if careless calls pass the task.

    Attempts that happen to contain all changing calls of the solution are ignored.
    """
    calls = audited.calls or ()
    needed = [calls[index] for index in audited.changing]
    passing = [
        each
        for each in _passing(audited, "everything", "random")
        if not needed or not all(call in each.attempt.calls for call in needed)
    ]
    # If doing nothing passes, attempts that changed nothing must pass, too.
    if passing and not (audited.nop_verdict["passed"] and not any(each.changed for each in passing)):
        is_luck = len(passing) < MIN_AGENTS and passing[0].attempt.kind == "random"
        is_fault = (
            not is_luck and not audited.nop_verdict["passed"] and any(each.world == DIFFERENT for each in passing)
        )
        yield _finding(audited, "no-work", passing[0], fault=is_fault)


def never_failing(audited: AuditedTask) -> list[str]:
    """Return the names of the checks that no attempt failed.

    Such a check is either a guard, which attempts needn't fail, or it tests nothing.
    """
    verdicts = [result.verdict for result in audited.results if result.verdict is not None]
    failing = {check["name"] for verdict in verdicts for check in verdict["checks"] if not check["passed"]}
    return [
        check["name"]
        for check in (audited.solution_verdict["checks"] if audited.solution_verdict else ())
        if check["name"] not in failing
    ]


def _checks(audited: AuditedTask) -> Iterator[AuditFinding]:
    """Yield checks that never fail, a reward for doing nothing, and rewards outside of their range."""
    for name in never_failing(audited):
        if name not in audited.guards:
            text = f"no attempt fails the check {name!r}: find out why before you delete it"
            yield AuditFinding("dead-check", False, text, about=name)
    nop_reward = audited.nop_verdict["reward"] or 0
    if nop_reward > 0 and not audited.nop_verdict["passed"]:
        text = f"doing nothing earns the reward {nop_reward:g}: count only what the agent changed"
        yield AuditFinding("nothing-rewarded", False, text)
    for result in audited.results:
        reward = (result.verdict and result.verdict["reward"]) or 0
        if not 0 <= reward <= 1:
            text = f"{result.attempt.what}: the reward is {reward:g}, not between 0 and 1"
            calls = _plain(whole(audited, result.attempt))
            yield AuditFinding("reward-range", False, text, calls, result.attempt.answer)
            return
