"""Lists of rules: the limits and the validation shared by perturbation rules and event rules."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from toolpack_server.jsonio.strict import dumps

MAX_RULES = 50
MAX_BYTES = 16_384


class NamedRule(Protocol):
    """A parsed rule of any kind."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=NamedRule)


class Texts(NamedTuple):
    """Error messages for one kind of rules, without a full stop.

    Attributes:
        no_list: The value isn't a list.
        too_many: There are too many rules, or they are too large.
        no_json: A rule can't be converted to JSON.
        twice: Two rules have the same name. `read_list` puts this name in place of `{name!r}`.
    """

    no_list: str
    too_many: str
    no_json: str
    twice: str


def is_text(value: Any) -> bool:
    """Return whether a value is a string that isn't empty."""
    return isinstance(value, str) and value != ""


def are_texts(value: Any) -> bool:
    """Return whether a value is a list of non-empty strings, and itself not empty."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_text, value))


def read_list(value: Any, read: Callable[[int, Any], R], texts: Texts) -> Sequence[R]:
    """Parse and validate a list of rules, whose names must all differ.

    Args:
        read: Parses one rule; it gets the rule's index and the rule.
        texts: The error messages for this kind of rules.

    Raises:
        ValueError: The list or a rule is invalid. The message has no full stop, so that the caller can embed it.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(texts.no_list)  # noqa: TRY004 - callers handle only ValueError
    if len(value) > MAX_RULES:
        raise ValueError(texts.too_many)
    rules = [read(index, rule) for index, rule in enumerate(value)]
    try:
        size = len(dumps([*value]))
    except (TypeError, ValueError, RecursionError):
        raise ValueError(texts.no_json) from None
    if size > MAX_BYTES:
        raise ValueError(texts.too_many)
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(texts.twice.format(name=name))
    return rules
