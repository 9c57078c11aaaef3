"""Environments to bytes and back: the only place where bytes become objects.

Bytes may be forged even where a keyed hash stands in front, so the rule is: what the reader can do is fixed before the
first byte is read. Pickle's C implementation moves the data; the only names that it can fetch are those of the
operators (see `operators.py`), found in one dictionary. Nothing is imported, and no class comes within reach of the
bytes. No `__init__`, validator or property runs; what pickle itself asks of an instance is its `__hash__` and `__eq__`
where it is a key or in a set. The hash in front is needed all the same: only it stops bytes that ask for gigabytes, or
that make pickle call what an admitted instance itself offers (`append`, `__call__`, a property's setter).
"""

import copyreg
import hashlib
import hmac
import io
import pickle
from typing import Any, NoReturn

from server.classes import ClassTable
from server.errors import ClassesChangedError, SnapshotError, StateDamagedError
from server.graph import walk
from server.operators import Codec, CycleError, codec_of
from server.plain_types import NATIVE, RefusedError

FORMAT = "toolpack-snapshot-1"
"""Names how snapshots are written; it is part of what the keyed hash covers."""

_MAX_NESTING = 200
_HASH_SIZE = 32
_HEADER = FORMAT.encode()
_SHOWN_PATH = 200


def freeze(value: object, classes: ClassTable) -> bytes:
    """Write the object graph as bytes.

    Raises:
        SnapshotError: Something in it can't be kept exactly; the text names its path and type.
    """
    codec = codec_of(classes)
    try:
        try:
            return _written(value, codec, stepwise=False)
        except CycleError:
            return _written(value, codec, stepwise=True)
    except SnapshotError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being written
        raise SnapshotError(_blame(value, codec, error)) from None


def thaw(data: bytes, classes: ClassTable) -> Any:
    """Read an object graph that `freeze` wrote.

    Raises:
        StateDamagedError: The bytes can't be read.
    """
    try:
        return _read(data, codec_of(classes))
    except Exception as error:
        raise StateDamagedError(f"The stored state can't be read back: {type(error).__name__}.") from error


def seal(payload: bytes, fingerprint: str, key: bytes) -> bytes:
    """Put a header before the payload: format, keyed hash of all the rest, fingerprint of the classes."""
    mark = fingerprint.encode()
    rest = bytes([len(mark)]) + mark + payload
    return _HEADER + _keyed_hash(rest, key) + rest


def unseal(blob: bytes, fingerprint: str, key: bytes) -> bytes:
    """Check header and hash, and return the payload.

    Raises:
        StateDamagedError: The hash is wrong: the bytes were damaged, or sealed with another key.
        ClassesChangedError: The hash is right, but the payload was written by other classes.
    """
    start = len(_HEADER) + _HASH_SIZE
    found, rest = blob[len(_HEADER) : start], blob[start:]
    if not (blob.startswith(_HEADER) and hmac.compare_digest(found, _keyed_hash(rest, key))):
        raise StateDamagedError(
            "The stored state fails its keyed hash: it was damaged or forged, or written with another secret key."
        )
    end = 1 + rest[0]
    if rest[1:end] != fingerprint.encode():
        raise ClassesChangedError(
            "The stored state was written by other classes than those that are loaded. "
            "Reset the session to version 0 to rebuild it, or load the classes that wrote it."
        )
    return rest[end:]


def _keyed_hash(rest: bytes, key: bytes) -> bytes:
    if not key:
        raise ValueError("A snapshot needs a secret key: without one the hash would prove nothing.")
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        key = hashlib.blake2b(key).digest()
    keyed = hashlib.blake2b(_HEADER, key=key, digest_size=_HASH_SIZE)
    keyed.update(rest)
    return keyed.digest()


class _Writer(pickle.Pickler):
    """Writes everything but plain builtins through the table's writers; what has none is refused."""

    def __init__(self, buffer: io.BytesIO, codec: Codec, *, stepwise: bool) -> None:
        super().__init__(buffer, 5, buffer_callback=_refuse_buffer)
        self.memo = codec.memo
        self.writers = codec.writers
        self.stepwise = stepwise  # write also what hashes by value in two steps
        self.doubtful = stepwise  # only reading it back shows whether sets and dicts find their members
        self.begun: set[int] = set()

    def reducer_override(self, obj: Any) -> tuple[Any, ...]:
        return self.writers[type(obj)](self, obj)


class _Reader(pickle.Unpickler):
    """Fetches operators, and nothing else."""

    def __init__(self, buffer: io.BytesIO, codec: Codec) -> None:
        super().__init__(buffer)
        self._find = codec.find

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return self._find[module_name, global_name]


def _written(value: object, codec: Codec, *, stepwise: bool) -> bytes:
    buffer = io.BytesIO()
    buffer.write(codec.preamble)
    writer = _Writer(buffer, codec, stepwise=stepwise)
    writer.dump(value)
    data = buffer.getvalue()
    if writer.doubtful:
        _check_members(data, value, codec)
    return data


def _read(data: bytes, codec: Codec) -> Any:
    if copyreg._extension_cache:  # type: ignore[attr-defined]  # noqa: SLF001 - read past find_class, so it must be empty
        copyreg.clear_extension_cache()
    buffer = io.BytesIO(data)
    value = _Reader(buffer, codec).load()
    if buffer.tell() != len(data):
        raise pickle.UnpicklingError("there is more behind the end")
    return value


def _check_members(data: bytes, value: object, codec: Codec) -> None:
    """Look whether, read back, every set and dict finds what it holds.

    It doesn't if a member was hashed before its state, or the state that its hash depends on, had arrived.
    """
    reason = "a member's hash depends on a cycle that the member is part of"
    try:
        read_back = _read(data, codec)
    except Exception:  # whatever `__hash__` raises of an instance that is still empty
        for path, _depth, found in walk(value):
            if isinstance(found, (set, frozenset, dict)) and any(_hashes_by_value(m, codec) for m in list(found)):
                raise SnapshotError(_sentence(path, found, reason)) from None
        raise
    for path, _depth, found in walk(read_back):
        if isinstance(found, (set, frozenset, dict)) and not all(member in found for member in list(found)):
            raise SnapshotError(_sentence(path, found, reason))


def _hashes_by_value(member: object, codec: Codec) -> bool:
    layout = codec.layouts.get(type(member))
    return layout is not None and layout.hashed != "by identity"


def _blame(value: object, codec: Codec, error: Exception) -> str:
    """Find the object for which writing failed, and say it with its path. Slow, as it only runs after a failure."""
    writer = _Writer(io.BytesIO(), codec, stepwise=True)
    too_deep = isinstance(error, RecursionError)
    try:
        for path, depth, found in walk(value):
            if too_deep and depth > _MAX_NESTING:
                return _sentence(path, found, f"it is nested deeper than {_MAX_NESTING} levels")
            if type(found) not in NATIVE:
                try:
                    writer.reducer_override(found)
                except Exception as why:  # noqa: BLE001 - whatever keeps it from being written
                    return _sentence(path, found, str(why))
    except RecursionError:  # the caller's own stack is nearly used up
        too_deep = True
    reason = "it is nested too deeply" if too_deep else f"{type(error).__name__}: {error}"
    return _sentence("", value, reason)


def _sentence(path: str, found: object, reason: str) -> str:
    where = path.removeprefix(".")
    where = f"`{where[:_SHOWN_PATH]}{'…' * (len(where) > _SHOWN_PATH)}`" if where else "The environment itself"
    return f"{where} can't be kept, its type is `{_type_name(found)}`: {reason}."


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refuse_buffer(_buffer: object) -> NoReturn:
    raise RefusedError("a buffer is a view of memory that something else owns")
