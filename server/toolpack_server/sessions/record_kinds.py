"""Record kinds: how each is displayed and replayed, and how it affects the path.

Code that reads records uses the methods of their kind, and doesn't compare names of kinds. A record of an unregistered
kind, such as that of a removed feature, is a note: it has no effect.
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
"""The members of a record that clients see."""


class RecordKind:
    """Kind of record. The defaults fit a note: it has no effect, and a replay copies it.

    Attributes:
        name: Name of the kind, which records have as `kind`.
        shape: `TypedDict` of the members that clients see. A record in a bundle must match it. Members that all records
            have may be omitted.
        inherited: A fork's path includes records of this kind from its ancestors.
        title: Title of such a record in the console. Names in braces are replaced by members of the record.
        content: Member with the text that the console shows, or "".
        is_message: Participants may send each other such records, which then have `by` and `to`.
        is_call: The record has the members of a call's record. Evaluators see a call, and a replay runs it again.
    """

    name: ClassVar[str] = ""
    shape: Any = dict[str, Any]
    inherited: ClassVar[bool] = True
    title: ClassVar[str] = "{kind}"
    content: ClassVar[str] = ""
    is_message: ClassVar[bool] = False
    is_call: ClassVar[bool] = False

    def check(self, shown: Shown) -> None:
        """Check a record from a bundle.

        Raises:
            ValueError: The record can't be shown or replayed.
        """
        self._adapter.validate_python(self._omit(shown), strict=True)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.shape)

    @cached_property
    def _omit(self) -> Omit:
        """Return a function that removes null members, because old records have null for a missing value."""
        return omission(self.shape) or (lambda shown: shown)

    def heard(self, shown: Shown) -> Shown:
        """Return the record as the caller saw it: the same object, or a copy with the changed answer it got."""
        return shown

    def goes_back_to(self, shown: Shown) -> int | None:
        """Return the target version if this record is a reset, or None."""

    def message(self, shown: Shown) -> SaidMessage | None:
        """Return the message of the conversation in this record, or None."""

    def answer(self, shown: Shown) -> str | None:
        """Return the answer in this record, or None. An answer ends the agent's part."""

    def failure(self, shown: Shown) -> PartFailure | None:
        """Return the participant's failure in this record, or None. It ends the session and makes verdicts invalid."""

    def ends(self, shown: Shown) -> bool:
        """Return whether the record ends the session for all addresses: no call or message follows it."""
        return self.answer(shown) is not None or self.failure(shown) is not None

    def text(self, shown: Shown, width: int) -> str:
        """Return one or two lines of text for the command line. Values are cut to `width` characters."""
        others = {name: value for name, value in shown.items() if name not in {"index", "kind", "path_index"}}
        return f"{printable(shown['kind'])} {short(others, width)}"

    def add_to_trajectory(self, messages: list[dict[str, Any]], shown: Shown) -> None:
        """Add the messages of a chat completion that the agent saw for this record. The default adds none."""


class RecordKinds(dict[str, RecordKind]):
    """Kinds by name. Any other name is a note."""

    def __missing__(self, _name: str) -> RecordKind:
        return _NOTE

    @property
    def shape(self) -> Any:
        """Type of a record: the shape of any of these kinds, or any object for other kinds."""
        shapes = [kind.shape for kind in self.values() if is_typeddict(kind.shape)]
        return Union[(*shapes, RecordKind.shape)]


_NOTE = RecordKind()


def short(value: Any, max_length: int) -> str:
    """Return a value as printable JSON text of at most `max_length` characters."""
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
