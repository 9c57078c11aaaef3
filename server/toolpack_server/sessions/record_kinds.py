"""Record kinds: how records of a kind are displayed and replayed, and how they affect the path.

Code that reads a record uses the methods of the record's kind, and doesn't compare names of kinds. A record of an
unknown kind, for example from a feature that isn't loaded, is treated as a note: it is displayed, but has no effect.
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
"""The fields of a record that clients see."""


class RecordKind:
    """Kind of record. The defaults describe a note, which has no effect and which a replay copies.

    Attributes:
        name: Name of the kind, the value of `kind` in a record.
        shape: `TypedDict` of the fields that clients see. A record in a bundle must match this type. The type can omit
            fields that all records have.
        inherited: Whether a fork's path includes records of this kind from its ancestors.
        title: Title of a record in the console. Each name in braces is replaced by the field with this name.
        content: Name of the field that contains the text for the console, or "".
        is_message: Whether participants can send records of this kind to each other. These records contain `by` and
            `to`.
        is_call: Whether the record contains the fields of a call's record. Evaluators then see a call, and a replay
            runs the call again.
    """

    name: ClassVar[str] = ""
    shape: Any = dict[str, Any]
    inherited: ClassVar[bool] = True
    title: ClassVar[str] = "{kind}"
    content: ClassVar[str] = ""
    is_message: ClassVar[bool] = False
    is_call: ClassVar[bool] = False

    def check(self, shown: Shown) -> None:
        """Check a record that was read from a bundle.

        Raises:
            ValueError: The record can't be shown or replayed.
        """
        self._adapter.validate_python(self._omit(shown), strict=True)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        """The validator of records."""
        return TypeAdapter(self.shape)

    @cached_property
    def _omit(self) -> Omit:
        """A function that removes fields with the value null, because old records contain null for a missing value."""
        return omission(self.shape) or (lambda shown: shown)

    def heard(self, shown: Shown) -> Shown:
        """Return the record as the caller saw it.

        If the caller got a changed answer, this is a copy with that answer. Otherwise it is the same object.
        """
        return shown

    def goes_back_to(self, shown: Shown) -> int | None:
        """Return the version that a reset restores, or None if the record isn't a reset."""

    def message(self, shown: Shown) -> SaidMessage | None:
        """Return the participant's message in this record, or None."""

    def answer(self, shown: Shown) -> str | None:
        """Return the session's answer in this record, or None. After an answer, the agent can't call functions."""

    def failure(self, shown: Shown) -> PartFailure | None:
        """Return the failure of a participant in this record, or None.

        A failure ends the session, and makes its verdicts invalid.
        """

    def ends(self, shown: Shown) -> bool:
        """Return whether the record ends the session for all addresses, so that no call or message can follow."""
        return self.answer(shown) is not None or self.failure(shown) is not None

    def text(self, shown: Shown, width: int) -> str:
        """Return one or two lines of text for the command line. Values are cut to `width` characters."""
        others = {name: value for name, value in shown.items() if name not in {"index", "kind", "path_index"}}
        return f"{printable(shown['kind'])} {short(others, width)}"

    def add_to_trajectory(self, messages: list[dict[str, Any]], shown: Shown) -> None:
        """Add the chat messages that correspond to this record, in the format of a chat completion.

        The default adds no messages. Only records that the agent sees need messages.
        """


class RecordKinds(dict[str, RecordKind]):
    """Kinds of records by name. Any unknown name returns the kind of a note."""

    def __missing__(self, _name: str) -> RecordKind:
        """Return the kind of a note for an unknown name, without storing it under that name."""
        return _NOTE

    @property
    def shape(self) -> Any:
        """Type of a record: the union of all kinds' shapes and, for notes, any JSON object."""
        shapes = [kind.shape for kind in self.values() if is_typeddict(kind.shape)]
        return Union[(*shapes, RecordKind.shape)]


_NOTE = RecordKind()


def short(value: Any, max_length: int) -> str:
    """Return a value as printable JSON text of at most `max_length` characters."""
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
