"""What attempts that have passed say of a task: the table of findings in docs/write/tasks.md."""

import pytest

from toolpack_author.audit.attempts import Attempt
from toolpack_author.audit.findings import AuditedTask, findings
from toolpack_author.audit.trials import AttemptResult


def verdict(reward):
    return {"reward": reward, "passed": reward >= 1, "checks": []}


def found(*results, changing=(0,), says=True):
    """Get kinds and levels of the findings where these attempts, by kind and reward, were made."""
    made = [AttemptResult(Attempt(kind, 1, (), "", f"try {at}"), verdict(r)) for at, (kind, r) in enumerate(results)]
    call = ("pay", {"amount": 1}, "agent")
    tried = AuditedTask((call,), changing, says, False, verdict(0.0), verdict(1.0), made)
    return [(finding.kind, finding.level) for finding in findings(tried)]


@pytest.mark.parametrize(
    ("rewards", "unchecked"), [((0, 1, 0), False), ((0, 0, 1), False), ((0, 1, 1), True), ((1, 0, 0), True)]
)
@pytest.mark.parametrize(("changing", "level"), [((), "fault"), ((0,), "weakness")])
def test_an_answer_is_unchecked_if_none_or_both_wrong_ones_pass(rewards, unchecked, changing, level):
    results = zip(("empty", "wrong", "wrong"), rewards, strict=True)
    assert found(*results, changing=changing) == ([("answer-unchecked", level)] if unchecked else [])


@pytest.mark.parametrize(("reward", "outside"), [(-0.5, True), (0, False), (0.5, False), (1.5, True)])
def test_a_reward_is_between_0_and_1(reward, outside):
    assert (("reward-range", "weakness") in found(("nothing", reward))) is outside


@pytest.mark.parametrize(("agents", "level"), [(1, "weakness"), (2, "fault")])
def test_one_agent_that_calls_at_random_may_be_lucky(agents, level):
    assert found(*[("random", 1)] * agents) == [("no-work", level)]
