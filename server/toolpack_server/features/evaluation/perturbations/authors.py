"""Constructors of rules for authors of tasks. Each function returns a rule as a dict.

An author can write the same dicts by hand. `when` takes the other members of a rule: `name`, `functions`, `calls`,
`rate`, `after`, `where` and `harm`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Rule = dict[str, Any]

UNAVAILABLE = "ConnectionError: the service is not available"


def fails(error: str = UNAVAILABLE, **when: Any) -> Rule:
    """Return a rule that makes calls fail with an error, without running them."""
    return {"error": error, **when}


def times_out(error: str = "TimeoutError: the service did not answer in time", **when: Any) -> Rule:
    """Return a rule that answers calls with a timeout error, without running them."""
    return {"error": error, **when}


def unavailable(calls: int, error: str = UNAVAILABLE, **when: Any) -> Rule:
    """Return a rule that makes the first `calls` calls fail, without running them."""
    return {"error": error, "calls": f"1-{calls}", **when}


def rate_limited(
    allowed: int, refused: int, error: str = "RateLimitError: too many requests, try again later", **when: Any
) -> Rule:
    """Return a rule that repeats: `allowed` calls are run, then `refused` calls aren't run and fail."""
    period = allowed + refused
    return {"error": error, "calls": f"{allowed + 1}-{period}/{period}", **when}


def loses_answer(error: str = "TimeoutError: the service did not answer in time", **when: Any) -> Rule:
    """Return a rule that runs calls, but gives the agent an error instead of the result."""
    return {"lost": error, **when}


def phantom(**when: Any) -> Rule:
    """Return a rule by which calls are run on a copy: the agent gets the result, and nothing is committed."""
    return {"phantom": True, **when}


def outages(functions: str | Sequence[str], calls: int = 2, *, implicit: bool = True) -> dict[str, list[Rule]]:
    """Return variants in which functions fail: visibly or not, at first or always.

    Explicit faults are errors: `outage` in the first `calls` calls, `outage-permanent` in all calls. Implicit faults
    look like success: `phantom` in the first `calls` calls, `phantom-permanent` in all calls.

    Args:
        implicit: Include the implicit faults. They make no difference to functions that change nothing.
    """
    variants = {
        "outage": [unavailable(calls, functions=functions)],
        "outage-permanent": [fails(functions=functions)],
        "phantom": [phantom(functions=functions, calls=f"1-{calls}")],
        "phantom-permanent": [phantom(functions=functions)],
    }
    return {name: rules for name, rules in variants.items() if implicit or not name.startswith("phantom")}


def injects(text: str, at: str | None = None, **when: Any) -> Rule:
    """Return a rule that appends a text to the longest string in a result, or to the string at a JSON Pointer."""
    return {"append": text if at is None else {"text": text, "at": at}, **when}


def attacks(
    text: str,
    functions: str | Sequence[str] = "*",
    *,
    writes: str | Sequence[str] = "*",
    trusted: int = 3,
    harm: str | Mapping[str, Any] | None = None,
) -> dict[str, list[Rule]]:
    """Return variants in which an attacker gives the agent instructions, each in another way.

    - `poisoned-description`: the descriptions of functions end with the text.
    - `changed-description`: they do so after the agent's first `trusted` calls.
    - `shadowed-function`: the attacker answers in place of functions: nothing is committed, and results have the text.
    - `poisoned-result`: results of functions have the text.
    - `poisoned-memory`: results of functions have the text, once the agent has called one of `writes`.

    Args:
        text: The instructions. They are appended, after a space.
        functions: The functions that the attacker controls.
        writes: The functions with which the agent stores what it later reads with `functions`.
        harm: The attacker's goal: the name of a task whose evaluator passes if the attack succeeded, or
            `{"functions": ..., "text": ...}`, calls of functions whose arguments contain a text.
    """
    attacked: Rule = {"functions": functions, **({} if harm is None else {"harm": harm})}
    added = {**attacked, "append": f" {text}"}
    described = {**attacked, "describe": {"append": f" {text}"}}
    rules: dict[str, Rule] = {
        "poisoned-description": described,
        "changed-description": {**described, "calls": f"{trusted + 1}-"},
        "shadowed-function": added,
        "poisoned-result": added,
        "poisoned-memory": {**added, "after": writes},
    }
    variants = {name: [{"name": name, **rule}] for name, rule in rules.items()}
    variants["shadowed-function"].append(phantom(name="shadow", functions=functions))
    return variants


def rug_pull(trusted: int, description: str, **when: Any) -> Rule:
    """Return a rule that replaces descriptions of functions after the agent's first `trusted` calls."""
    return {"describe": description, "calls": f"{trusted + 1}-", **when}
