"""What is to be known of a kind of record: how it is shown, and what it means to the path.

Whoever reads records asks their kind, and knows none by its name. A kind that nobody has registered, such as
that of a feature which was taken out, is a note that changes nothing.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Union

from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from toolpack_server.base.terminal import printable
from toolpack_server.protocol.omission import Omit, omission
from toolpack_server.protocol.results import PartFailure, SaidMessage

Shown = Mapping[str, Any]
"""What clients see of a record."""


class RecordKind:
    """A kind of record; what is here fits a note that changes nothing, of which a replay makes a copy.

    Attributes:
        name: Its name, the `kind` of such a record.
        shape: A `TypedDict`, what clients see of such a record; one in a bundle must have this form. Members that all
            records have may be left out.
        inherited: A fork's path has such records of its ancestors, too.
        title: What the console calls such a record; members of the record stand in braces.
        content: The member with its text, which the console shows; "" if there is none.
        is_message: Participants may say such records to each other: then they have `by` and `to`.
        is_call: It has the members of a call's record: evaluators see it as a call, and a replay runs it again.
    """

    name: ClassVar[str] = ""
    shape: Any = dict[str, Any]
    inherited: ClassVar[bool] = True
    title: ClassVar[str] = "{kind}"
    content: ClassVar[str] = ""
    is_message: ClassVar[bool] = False
    is_call: ClassVar[bool] = False

    def check(self, shown: Shown) -> None:
        """Check a record that came in a bundle; a `ValueError` if it can't be shown or repeated."""
        self._adapter.validate_python(self._omit(shown), strict=True)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.shape)

    @cached_property
    def _omit(self) -> Omit:
        """Get what takes a record as records once were, with null for what isn't set."""
        return omission(self.shape) or (lambda shown: shown)

    def heard(self, shown: Shown) -> Shown:
        """Get a record as whoever made it knows it: the same object, unless that isn't what has happened."""
        return shown

    def goes_back_to(self, shown: Shown) -> int | None:
        """Get the version to which the path goes back with this record; None if it goes on."""

    def message(self, shown: Shown) -> SaidMessage | None:
        """Get the message of the conversation that it records; None if it records none."""

    def answer(self, shown: Shown) -> str | None:
        """Get the answer that it records, which ends the agent's part; None if it records none."""

    def failure(self, shown: Shown) -> PartFailure | None:
        """Get whose part has failed, if it records that: it ends the session for all, and no verdict is valid."""

    def ends(self, shown: Shown) -> bool:
        """Whether it ends the session for all addresses: nothing is called or said after it."""
        return self.answer(shown) is not None or self.failure(shown) is not None

    def text(self, shown: Shown, width: int) -> str:
        """Describe it in a line or two for the command; a long value is cut after so many characters."""
        others = {name: value for name, value in shown.items() if name not in {"index", "kind", "place"}}
        return f"{printable(shown['kind'])} {short(others, width)}"

    def add_to_trajectory(self, messages: list[dict[str, Any]], shown: Shown) -> None:
        """Add what the agent has seen of it to the messages of a chat completion; nothing by default."""


class RecordKinds(dict[str, RecordKind]):
    """The kinds by name; any other one is a note."""

    def __missing__(self, _name: str) -> RecordKind:
        return _NOTE

    @property
    def shape(self) -> Any:
        """The type of a record: of one of these kinds, or any object, of one that says no more or isn't there now."""
        shapes = [kind.shape for kind in self.values() if is_typeddict(kind.shape)]
        return Union[(*shapes, RecordKind.shape)]


_NOTE = RecordKind()


def short(value: Any, most: int) -> str:
    """Get a value as printable JSON text, cut after so many characters."""
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= most else f"{text[: most - 1]}…"
