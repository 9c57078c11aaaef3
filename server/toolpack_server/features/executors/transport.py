"""How operations travel to an executor and back: what their fields hold, said once for all.

A snapshot among the fields travels as bytes, but for the pieces of volumes, which are asked for when they are
needed, as are the snapshots that a function among the fields gets. What an executor asks for is looked up among what
the request has named, and nowhere else. An answer may be an attacker's: nothing of it is used before it has proved to
have the right form and size, and one that is wrong nevertheless harms its own session only.

    worker:    write  →                       supply  →            read
    executor:           serving: the request,  ask ("need"), …, the answer
"""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin

from typing_extensions import override

from toolpack_server.base.errors import RequestError
from toolpack_server.execution.codec import Codec, PlainCodec
from toolpack_server.execution.conditions import ExecutionPolicy
from toolpack_server.execution.initial import Built
from toolpack_server.execution.operations import MakeEnvironment
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.snapshot import Snapshot, Versions
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.executors.channel import Frame
from toolpack_server.features.executors.refusals import read_refusal, write_refusal
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.volumes.volume import is_piece

T = TypeVar("T")

MAX_VOLUMES = 64  # of a toolpack
PIECE_BYTES = 2**20  # of a piece without its content, at most

Ask = Callable[[Any], Frame]
"""Gets from the worker what an operation needs and its request doesn't contain."""


class Transport(Generic[T]):
    """How one operation travels; made anew for each. Its result is JSON, of a size that the head of an answer may have.

    Attributes:
        preferred: The number of the executor that does it fastest; None for any.
    """

    preferred: int | None = None
    most_pieces: ClassVar[int] = 0  # of an answer

    def __init__(self, operation: RunnerOperation[T]) -> None:
        self._operation = operation

    def write(self, codec: Codec, process: int) -> Frame:  # noqa: ARG002 - calls need to know
        """Write the request, with snapshots opened by the codec, as an executor gets no key.

        If the executor ends before it has read that, another request is written.
        """
        pieces: list[bytes] = []
        self._named: dict[str, Snapshot | Versions] = {}
        return Frame({"fields": self._written("", self._operation, codec, pieces)}, pieces)

    def _written(self, place: str, value: Any, codec: Codec, pieces: list[bytes]) -> Any:
        if isinstance(value, Snapshot):
            self._named[place] = value
            given = [part for part in value.parts if not is_piece(part)]
            pieces += [opened(codec, value, part) for part in given]
            return {"parts": known_parts(value, value.parts), "given": given}
        if isinstance(value, ExecutionPolicy):
            return written(value)
        if is_dataclass(value):
            found = {each.name: getattr(value, each.name) for each in fields(value)}
            return {name: self._written(f"{place}/{name}", each, codec, pieces) for name, each in found.items()}
        if isinstance(value, tuple | list):
            return [self._written(place, each, codec, pieces) for each in value]
        if callable(value):
            self._named[place] = value
            return None
        return value

    def supply(self, need: Any, codec: Codec) -> Frame:
        """Get a piece of a volume of a snapshot, or the environments of a version; a `ValueError` if it has neither."""
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

    def allows(self, sizes: Sequence[int], context: ExecutionContext) -> bool:  # noqa: ARG002 - of others it depends on it
        """Whether an answer may have pieces of these sizes; others aren't even received."""
        return len(sizes) <= self.most_pieces

    def read(self, answer: Frame, context: ExecutionContext, process: int) -> T:  # noqa: ARG002 - as above
        """Check and read the answer, with the codec that seals.

        Raises:
            ValueError: It has another form; or `AttributeError`, `IndexError`, `KeyError`, `TypeError`.
        """
        found = self._result(answer)
        result: T = found if self._operation.shape is None else self._operation.shape.validate_python(found)
        check_answer(self._operation.fits(result))
        return result

    def _result(self, answer: Frame) -> Any:
        return answer.head["result"]

    @classmethod
    def serving(cls, kind: type[RunnerOperation[T]], context: ExecutionContext, ask: Ask) -> Callable[[Frame], Frame]:
        """Get the function that turns requests into answers, in an executor. Called once per executor."""

        def serve(request: Frame) -> Frame:
            operation = _restored("", kind, request.head["fields"], iter(request.pieces), ask)
            return cls.answer(operation.run(context))

        return serve

    @classmethod
    def answer(cls, result: T) -> Frame:
        """Write the result, in an executor."""
        return Frame({"result": result}, [])


class BytesTransport(Transport[bytes]):
    """Of operations whose result is bytes."""

    most_pieces = 1

    @override
    def _result(self, answer: Frame) -> bytes:
        (found,) = answer.pieces
        return found

    @classmethod
    @override
    def answer(cls, result: bytes) -> Frame:
        return Frame({}, [result])


class LongTransport(Transport[T]):
    """Of operations whose result is JSON that may be long: it travels as a piece."""

    most_pieces = 1

    @override
    def _result(self, answer: Frame) -> Any:
        (text,) = answer.pieces
        return loads(text)

    @classmethod
    @override
    def answer(cls, result: T) -> Frame:
        return Frame({}, [dumps(result)])


class ExportTransport(LongTransport[dict[str, str]]):
    @override
    def allows(self, sizes: Sequence[int], context: ExecutionContext) -> bool:
        return super().allows(sizes, context) and sum(sizes) <= 2 * MAX_VOLUMES * largest_piece(context.codec)


class MakingTransport(Transport[Built]):
    _operation: MakeEnvironment

    @classmethod
    @override
    def answer(cls, result: Built) -> Frame:
        return Frame({"parts": [*result]}, [blob for _, blob in result.values()])

    @override
    def allows(self, sizes: Sequence[int], context: ExecutionContext) -> bool:
        functions = context.codec.catalog.toolpacks[self._operation.toolpack].functions.values()
        # One part for each attribute that a function uses, if it uses no other, one for the rest, and for each volume.
        parts = 1 + sum(len(function.function.dependencies) for function in functions) + MAX_VOLUMES
        most = max(context.codec.max_bytes, largest_piece(context.codec))
        return len(sizes) <= parts and all(size <= most for size in sizes)

    @override
    def read(self, answer: Frame, context: ExecutionContext, process: int) -> Built:
        payloads = dict(zip(answer.head["parts"], answer.pieces, strict=True))
        check_answer(payloads and all(toolpack_of(part) == self._operation.toolpack for part in payloads))
        return {part: context.codec.seal(part, payload) for part, payload in payloads.items()}


def check_answer(holds: object) -> None:
    """Raise `ValueError` unless something holds that an executor's answer must fulfil."""
    if not holds:
        raise ValueError("the answer of an executor doesn't fit the request")


def path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def written(conditions: ExecutionPolicy) -> list[Any]:
    """Get conditions as JSON, for an executor."""
    return [path_of(type(conditions)), asdict(conditions)]  # type: ignore[call-overload] # each is a dataclass


def restored(conditions: Sequence[Any]) -> ExecutionPolicy:
    path, values = conditions
    made: ExecutionPolicy = resolve_name(path)(**values)
    return made


def opened(codec: Codec, snapshot: Snapshot, part: str) -> bytes:
    """Get the bytes of a part as an executor reads them."""
    return codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])


def known_parts(snapshot: Snapshot, parts: Iterable[str]) -> dict[str, str]:
    """Get the blob ids by which an executor knows a volume again; those of other parts it needn't know."""
    return {part: snapshot.parts[part] if is_piece(part) else "" for part in parts}


def largest_piece(codec: PlainCodec) -> int:
    """Get how many bytes a piece may have: everything, and twice that is larger than any list of what is in it."""
    return 2 * codec.volumes.limits.max_bytes + PIECE_BYTES


class AskedParts(dict[str, bytes]):
    """The bytes of parts, in an executor; those that aren't here are asked for."""

    def __init__(self, ask: Ask, given: Mapping[str, bytes]) -> None:
        super().__init__(given)
        self._ask = ask

    def __missing__(self, part: str) -> bytes:
        (found,) = self._ask(part).pieces
        if not is_piece(part):
            self[part] = found
        return found


def _restored(place: str, kind: Any, value: Any, pieces: Iterator[bytes], ask: Ask) -> Any:
    """Get a field, in an executor, from what a request says of it."""
    if kind is Snapshot:
        return _snapshot(place, value, pieces, ask)
    if kind is ExecutionPolicy:
        return restored(value)
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
