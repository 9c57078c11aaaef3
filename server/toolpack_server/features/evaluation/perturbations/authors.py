"""What authors of tasks write rules with: each function returns one, as JSON.

Whatever is here can be written as a plain dict as well. `when` is `name`, `functions`, `calls`, `rate`,
`after` and `where`.
"""

from typing import Any

Rule = dict[str, Any]

UNAVAILABLE = "ConnectionError: the service is not available"


def fails(error: str = UNAVAILABLE, **when: Any) -> Rule:
    """Calls aren't run, and fail with an error."""
    return {"error": error, **when}


def times_out(error: str = "TimeoutError: the service did not answer in time", **when: Any) -> Rule:
    """Calls aren't run, and the agent hears that they took too long."""
    return {"error": error, **when}


def unavailable(calls: int, error: str = UNAVAILABLE, **when: Any) -> Rule:
    """The first so many calls aren't run, and fail."""
    return {"error": error, "calls": f"1-{calls}", **when}


def rate_limited(
    allowed: int, refused: int, error: str = "RateLimitError: too many requests, try again later", **when: Any
) -> Rule:
    """After so many calls that are run, so many aren't, in turns."""
    every = allowed + refused
    return {"error": error, "calls": f"{allowed + 1}-{every}/{every}", **when}


def loses_answer(error: str = "TimeoutError: the service did not answer in time", **when: Any) -> Rule:
    """Calls are run, and the agent hears an error all the same."""
    return {"lost": error, **when}


def injects(text: str, at: str | None = None, **when: Any) -> Rule:
    """A text comes at the end of the longest text of results, or of that at a JSON Pointer."""
    return {"append": text if at is None else {"text": text, "at": at}, **when}


def rug_pull(trusted: int, description: str, **when: Any) -> Rule:
    """After so many calls of any function, functions are described otherwise."""
    return {"describe": description, "calls": f"{trusted + 1}-", **when}
