"""The findings about attempts that pass, as the table in docs/write/tasks.md describes them."""

import pytest

from toolpack_author.audit.attempts import Attempt
from toolpack_author.audit.findings import AuditedTask, findings
from toolpack_author.audit.trials import AttemptResult


def verdict(reward):
    return {"reward": reward, "passed": reward >= 1, "checks": []}


def kinds_of(*results, changing=(0,), says=True, nop_reward=0.0):
    """Return the kinds and levels of the findings about attempts. An attempt is a pair of its kind and its reward."""
    attempts = [
        AttemptResult(Attempt(kind, 1, (), "", f"try {at}"), verdict(r)) for at, (kind, r) in enumerate(results)
    ]
    call = ("pay", {"amount": 1}, "agent")
    task = AuditedTask((call,), changing, says, False, verdict(nop_reward), verdict(1.0), attempts)
    return [(finding.kind, finding.level) for finding in findings(task)]


@pytest.mark.parametrize(
    ("rewards", "unchecked"), [((0, 1, 0), False), ((0, 0, 1), False), ((0, 1, 1), True), ((1, 0, 0), True)]
)
@pytest.mark.parametrize(("changing", "level"), [((), "fault"), ((0,), "weakness")])
def test_answer_is_unchecked_if_no_or_both_wrong_answers_pass(rewards, unchecked, changing, level):
    results = zip(("empty", "wrong", "wrong"), rewards, strict=True)
    assert kinds_of(*results, changing=changing) == ([("answer-unchecked", level)] if unchecked else [])


@pytest.mark.parametrize(("reward", "outside"), [(-0.5, True), (0, False), (0.5, False), (1.5, True)])
def test_reward_must_be_between_0_and_1(reward, outside):
    assert (("reward-range", "weakness") in kinds_of(("nothing", reward))) is outside


@pytest.mark.parametrize(("agents", "level"), [(1, "weakness"), (2, "fault")])
def test_one_lucky_random_agent_is_only_a_weakness(agents, level):
    assert kinds_of(*[("random", 1)] * agents) == [("no-work", level)]


@pytest.mark.parametrize(("nop_reward", "rewarded"), [(0, False), (-0.5, False), (0.2, True)])
def test_doing_nothing_earns_no_partial_reward(nop_reward, rewarded):
    assert (("nothing-rewarded", "weakness") in kinds_of(nop_reward=nop_reward)) is rewarded
