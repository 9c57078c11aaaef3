"""Transport of operations to an executor and back: serialises their fields and checks the answers.

Snapshots among an operation's fields are sent as bytes. Pieces of volumes, and snapshots that a `Versions` function
returns, are sent only when the executor asks for them. The executor can ask only for data that its request names. The
worker treats an answer as an attacker's input, and checks its form and size before using it. A forged answer that
passes these checks can harm only its own session, because the worker stores its content only there.

The methods of a transport, in the order of their use:

    worker      write           builds the request
    executor    make_handler    handles the request, and can ask for data (`ask`)
    worker      supply          returns the data
    executor    answer          builds the answer
    worker      allows, read    check the answer and return the result
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
from toolpack_server.execution.initial import Built
from toolpack_server.execution.operations import MakeEnvironment
from toolpack_server.execution.parts import toolpack_of
from toolpack_server.execution.policy import ExecutionPolicy
from toolpack_server.execution.runner import RunnerOperation
from toolpack_server.execution.snapshot import Snapshot, Versions
from toolpack_server.execution.world import ExecutionContext
from toolpack_server.features.executors.channel import Frame
from toolpack_server.features.executors.refusals import read_refusal, write_refusal
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.volumes.volume import is_piece

T = TypeVar("T")

MAX_VOLUMES = 64  # per toolpack
PIECE_BYTES = 2**20  # maximum size of a piece without its content

Ask = Callable[[Any], Frame]
"""Function that asks the worker for data that an operation needs but its request doesn't contain."""


class Transport(Generic[T]):
    """Transport of one operation whose result is JSON and fits into the head of an answer.

    Attributes:
        preferred: The number of the executor that would be fastest for this operation. None: all are equally fast.
        max_pieces: Maximum number of pieces in the answer.
    """

    preferred: int | None = None
    max_pieces: ClassVar[int] = 0

    def __init__(self, operation: RunnerOperation[T]) -> None:
        self._operation = operation

    def write(self, codec: Codec, process: int) -> Frame:  # noqa: ARG002 - `CallTransport` uses it
        """Build the request. The codec unseals the operation's snapshots, because an executor has no key.

        This is called again for another executor if the first executor exits before it reads the request.
        """
        pieces: list[bytes] = []
        self._named: dict[str, Snapshot | Versions] = {}
        return Frame({"fields": self._dump("", self._operation, codec, pieces)}, pieces)

    def _dump(self, path: str, value: Any, codec: Codec, pieces: list[bytes]) -> Any:
        """Return a field of the operation as JSON, and append the bytes of its snapshots to `pieces`.

        `path` is the field's path in the request. The executor names this path when it asks for the field's data.
        """
        if isinstance(value, Snapshot):
            self._named[path] = value
            whole = [part for part in value.parts if not is_piece(part)]
            pieces += [unseal_part(codec, value, part) for part in whole]
            return {"parts": part_ids(value, value.parts), "sent": whole}
        if isinstance(value, ExecutionPolicy):
            return dump_policy(value)
        if is_dataclass(value):
            values = {field.name: getattr(value, field.name) for field in fields(value)}
            return {name: self._dump(f"{path}/{name}", item, codec, pieces) for name, item in values.items()}
        if isinstance(value, tuple | list):
            return [self._dump(path, item, codec, pieces) for item in value]
        if callable(value):  # a `Versions` function, which the executor can't call: it asks for single versions
            self._named[path] = value
            return None
        return value

    def supply(self, need: Any, codec: Codec) -> Frame:
        """Return data that the executor asks for: a piece of a snapshot's volume, or the snapshot of a version.

        Raises:
            ValueError: The request doesn't name this data.
        """
        path, key = need
        named = self._named[path]
        if isinstance(named, Snapshot):
            check_answer(key in named.parts)
            return Frame({}, [unseal_part(codec, named, key)])
        check_answer(type(key) is int and key >= 0)
        pieces: list[bytes] = []
        try:
            return Frame(self._dump(f"{path}/{key}", named(key), codec, pieces), pieces)
        except RequestError as error:
            return Frame(write_refusal(error), [])

    def allows(self, sizes: Sequence[int], context: ExecutionContext) -> bool:  # noqa: ARG002 - subclasses use it
        """Return whether an answer may contain pieces of these sizes. If not, it is rejected before it is read."""
        return len(sizes) <= self.max_pieces

    def read(self, answer: Frame, context: ExecutionContext, process: int) -> T:  # noqa: ARG002 - as above
        """Check the answer and return its result. The context's codec seals the parts in the answer.

        Raises:
            ValueError: The answer is malformed. Malformed answers can also raise `AttributeError`, `IndexError`,
                `KeyError` or `TypeError`.
        """
        value = self._result(answer)
        result: T = value if self._operation.shape is None else self._operation.shape.validate_python(value)
        check_answer(self._operation.fits(result))
        return result

    def _result(self, answer: Frame) -> Any:
        return answer.head["result"]

    @classmethod
    def make_handler(
        cls, kind: type[RunnerOperation[T]], context: ExecutionContext, ask: Ask
    ) -> Callable[[Frame], Frame]:
        """Return the function that answers requests in an executor. Called once per executor."""

        def serve(request: Frame) -> Frame:
            operation = _restore("", kind, request.head["fields"], iter(request.pieces), ask)
            return cls.answer(operation.run(context))

        return serve

    @classmethod
    def answer(cls, result: T) -> Frame:
        """Build the answer that contains a result. Called in an executor."""
        return Frame({"result": result}, [])


class BytesTransport(Transport[bytes]):
    """Transport of operations that return bytes."""

    max_pieces = 1

    @override
    def _result(self, answer: Frame) -> bytes:
        (data,) = answer.pieces
        return data

    @classmethod
    @override
    def answer(cls, result: bytes) -> Frame:
        return Frame({}, [result])


class JsonPieceTransport(Transport[T]):
    """Transport of operations whose JSON result can be too long for an answer's head, so that it is sent as a piece."""

    max_pieces = 1

    @override
    def _result(self, answer: Frame) -> Any:
        (text,) = answer.pieces
        return loads(text)

    @classmethod
    @override
    def answer(cls, result: T) -> Frame:
        return Frame({}, [dumps(result)])


class ExportTransport(JsonPieceTransport[dict[str, str]]):
    """Transport of `ExportVolumes`. Its limit on the answer allows for the content of all volumes."""

    @override
    def allows(self, sizes: Sequence[int], context: ExecutionContext) -> bool:
        return super().allows(sizes, context) and sum(sizes) <= 2 * MAX_VOLUMES * largest_piece(context.codec)


class BuildTransport(Transport[Built]):
    """Transport of operations that make an environment. The answer's pieces are the bytes of its parts."""

    _operation: MakeEnvironment

    @classmethod
    @override
    def answer(cls, result: Built) -> Frame:
        return Frame({"parts": [*result]}, [blob for _, blob in result.values()])

    @override
    def allows(self, sizes: Sequence[int], context: ExecutionContext) -> bool:
        functions = context.codec.catalog.toolpacks[self._operation.toolpack].functions.values()
        # At most one part per attribute that some function uses alone, one per volume, and one for the rest.
        parts = 1 + sum(len(function.function.dependencies) for function in functions) + MAX_VOLUMES
        max_bytes = max(context.codec.max_bytes, largest_piece(context.codec))
        return len(sizes) <= parts and all(size <= max_bytes for size in sizes)

    @override
    def read(self, answer: Frame, context: ExecutionContext, process: int) -> Built:
        payloads = dict(zip(answer.head["parts"], answer.pieces, strict=True))
        check_answer(payloads and all(toolpack_of(part) == self._operation.toolpack for part in payloads))
        return {part: context.codec.seal(part, payload) for part, payload in payloads.items()}


def check_answer(condition: object) -> None:
    """Raise `ValueError` if an executor's answer doesn't meet a condition."""
    if not condition:
        raise ValueError("the answer of an executor doesn't fit the request")


def path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def dump_policy(policy: ExecutionPolicy) -> list[Any]:
    """Return an execution policy as JSON, for an executor."""
    return [path_of(type(policy)), asdict(policy)]  # type: ignore[call-overload] # all policies are dataclasses


def load_policy(fields: Sequence[Any]) -> ExecutionPolicy:
    """Return the execution policy that `dump_policy` has converted to JSON."""
    path, values = fields
    policy: ExecutionPolicy = resolve_name(path)(**values)
    return policy


def unseal_part(codec: Codec, snapshot: Snapshot, part: str) -> bytes:
    """Return the unsealed bytes of a part, as an executor reads them."""
    return codec.unseal(part, snapshot.parts[part], snapshot.blobs[part])


def part_ids(snapshot: Snapshot, parts: Iterable[str]) -> dict[str, str]:
    """Return the names of parts with the blob ids of volume pieces, by which an executor finds a volume in its cache.

    The ids of other parts are empty, because an executor doesn't need them.
    """
    return {part: snapshot.parts[part] if is_piece(part) else "" for part in parts}


def largest_piece(codec: PlainCodec) -> int:
    """Return the maximum size of a piece.

    A piece can contain the whole volume. Twice the volume's maximum size also covers the piece's index.
    """
    return 2 * codec.volumes.limits.max_bytes + PIECE_BYTES


class LazyParts(dict[str, bytes]):
    """Bytes of parts, by name, in an executor. A missing part is requested from the worker at its first use."""

    def __init__(self, ask: Ask, blobs: Mapping[str, bytes]) -> None:
        super().__init__(blobs)
        self._ask = ask

    def __missing__(self, part: str) -> bytes:
        (data,) = self._ask(part).pieces
        if not is_piece(part):
            self[part] = data
        return data


def _restore(path: str, kind: Any, value: Any, pieces: Iterator[bytes], ask: Ask) -> Any:
    """Rebuild a field of an operation in an executor, the reverse of `Transport._dump`.

    Args:
        path: The field's path in the request, by which the executor can ask for the field's data.
        kind: The field's type, because JSON doesn't contain the types.
        pieces: The request's pieces. Snapshots take theirs in the order that `_dump` appended them.
    """
    if kind is Snapshot:
        return _snapshot(path, value, pieces, ask)
    if kind is ExecutionPolicy:
        return load_policy(value)
    if kind == Versions:
        return partial(_version, path, ask)
    if isinstance(kind, type) and is_dataclass(kind):
        items = {field.name: (field.type, value[field.name]) for field in fields(kind)}
        return kind(**{name: _restore(f"{path}/{name}", *item, pieces, ask) for name, item in items.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return None if value is None else _restore(path, arguments[0], value, pieces, ask)
    if origin is tuple:
        return tuple(value)
    if origin is Sequence:
        return [_restore(path, arguments[0], item, pieces, ask) for item in value]
    return kind(*value) if hasattr(kind, "_fields") else value


def _snapshot(path: str, head: Any, pieces: Iterator[bytes], ask: Ask) -> Snapshot:
    """Rebuild a snapshot. Parts that weren't sent are requested from the worker at their first use."""
    blobs = {part: next(pieces) for part in head["sent"]}
    return Snapshot(head["parts"], LazyParts(lambda part: ask([path, part]), blobs))


def _version(path: str, ask: Ask, version: int) -> Snapshot:
    """Ask the worker for the snapshot of a version. This is the `Versions` function that operations call here."""
    answer = ask([path, version])
    if "refused" in answer.head:
        raise read_refusal(answer.head)
    return _snapshot(f"{path}/{version}", answer.head, iter(answer.pieces), ask)
