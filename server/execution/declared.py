"""Operations whose fields are their request: how they travel to an executor and back is said here, once for all.

The rule: a snapshot among the fields travels as bytes, but for the pieces of volumes, which are asked for when they are
needed, as are the snapshots that a function among the fields gets. What an executor asks for is looked up among what
the request has named, and nowhere else.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import TypeAdapter
from typing_extensions import override

from server.base.errors import RequestError
from server.execution.codec import Codec
from server.execution.refusals import read_refusal, write_refusal
from server.execution.runner import (
    Ask,
    AskedParts,
    Frame,
    RunnerOperation,
    check_answer,
    known_parts,
    opened,
)
from server.execution.world import Means, Snapshot
from server.jsonio.strict import dumps, loads
from server.volumes.volume import is_piece

T = TypeVar("T")

Versions = Callable[[int], Snapshot]
"""Gets the environments of another version; a `RequestError` if there are none."""


class Declared(RunnerOperation[T]):
    """An operation that is a dataclass; its result is JSON, of a size that the head of an answer may have.

    Its fields are JSON, snapshots, `Versions`, and named tuples and dataclasses of these.

    Attributes:
        shape: What its result looks like.
    """

    shape: ClassVar[TypeAdapter[Any]]

    @override
    def write(self, codec: Codec, process: int) -> Frame:
        pieces: list[bytes] = []
        self._named: dict[str, Snapshot | Versions] = {}
        return Frame({"fields": self._written("", self, codec, pieces)}, pieces)

    def _written(self, place: str, value: Any, codec: Codec, pieces: list[bytes]) -> Any:
        if isinstance(value, Snapshot):
            self._named[place] = value
            given = [part for part in value.parts if not is_piece(part)]
            pieces += [opened(codec, value, part) for part in given]
            return {"parts": known_parts(value, value.parts), "given": given}
        if is_dataclass(value):
            found = {each.name: getattr(value, each.name) for each in fields(value)}
            return {name: self._written(f"{place}/{name}", each, codec, pieces) for name, each in found.items()}
        if isinstance(value, tuple | list):
            return [self._written(place, each, codec, pieces) for each in value]
        if callable(value):
            self._named[place] = value
            return None
        return value

    @override
    def supply(self, need: Any, codec: Codec) -> Frame:
        """Get a piece of a volume of a snapshot, or the environments of a version."""
        place, wanted = need
        named = self._named[place]
        if isinstance(named, Snapshot):
            check_answer(wanted in named.parts)
            return Frame({}, [opened(codec, named, wanted)])
        check_answer(type(wanted) is int and wanted >= 0)
        pieces: list[bytes] = []
        try:
            return Frame(self._written(f"{place}/{wanted}", named(wanted), codec, pieces), pieces)
        except RequestError as error:
            return Frame(write_refusal(error), [])

    @override
    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        return not sizes

    @override
    def read(self, answer: Frame, means: Means, process: int) -> T:
        result: T = self.shape.validate_python(answer.head["result"])
        return result

    @classmethod
    @override
    def serving(cls, means: Means, ask: Ask) -> Callable[[Frame], Frame]:
        def serve(request: Frame) -> Frame:
            operation = _restored("", cls, request.head["fields"], iter(request.pieces), ask)
            return cls.answer(operation.run(means))

        return serve

    @classmethod
    def answer(cls, result: T) -> Frame:
        """Write the result, in an executor."""
        return Frame({"result": result}, [])


class DeclaredLong(Declared[T]):
    """A declared operation whose result is JSON that may be long: it travels as a piece."""

    @override
    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        return len(sizes) <= 1

    @override
    def read(self, answer: Frame, means: Means, process: int) -> T:
        (text,) = answer.pieces
        result: T = self.shape.validate_python(loads(text))
        return result

    @classmethod
    @override
    def answer(cls, result: T) -> Frame:
        return Frame({}, [dumps(result)])


class DeclaredText(Declared[bytes]):
    """A declared operation whose result is JSON text, which stays text."""

    @override
    def allows(self, sizes: Sequence[int], means: Means) -> bool:
        return len(sizes) <= 1

    @override
    def read(self, answer: Frame, means: Means, process: int) -> bytes:
        (text,) = answer.pieces
        loads(text)  # it becomes a part of an answer, which must stay JSON
        return text

    @classmethod
    @override
    def answer(cls, result: bytes) -> Frame:
        return Frame({}, [result])


def _restored(place: str, kind: Any, value: Any, pieces: Iterator[bytes], ask: Ask) -> Any:
    """Get a field, in an executor, from what a request says of it."""
    if kind is Snapshot:
        return _snapshot(place, value, pieces, ask)
    if kind == Versions:
        return partial(_version, place, ask)
    if isinstance(kind, type) and is_dataclass(kind):
        found = {each.name: (each.type, value[each.name]) for each in fields(kind)}
        return kind(**{name: _restored(f"{place}/{name}", *each, pieces, ask) for name, each in found.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return None if value is None else _restored(place, arguments[0], value, pieces, ask)
    if origin is tuple:
        return tuple(value)
    if origin is Sequence:
        return [_restored(place, arguments[0], each, pieces, ask) for each in value]
    return kind(*value) if hasattr(kind, "_fields") else value


def _snapshot(place: str, head: Any, pieces: Iterator[bytes], ask: Ask) -> Snapshot:
    given = {part: next(pieces) for part in head["given"]}
    return Snapshot(head["parts"], AskedParts(lambda part: ask([place, part]), given))


def _version(place: str, ask: Ask, version: int) -> Snapshot:
    found = ask([place, version])
    if "refused" in found.head:
        raise read_refusal(found.head)
    return _snapshot(f"{place}/{version}", found.head, iter(found.pieces), ask)
