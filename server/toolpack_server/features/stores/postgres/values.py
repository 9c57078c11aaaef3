"""Encoding of parameters and results of statements in Postgres' protocol. The functions do no I/O.

Strings are stored as UTF-8 bytes in columns of type bytea. The type text isn't used, because it can't contain the
character NUL, and because its sort order depends on the locale.
"""

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any

BOOL, BYTEA, INT8, INT4, TEXT, FLOAT8, BYTEAS, INT8S = 16, 17, 20, 23, 25, 701, 1001, 1016  # oids of pg_type

_ARRAY = Struct(">iiIii")  # dimensions, has NULLs, type of the elements, number of elements, first index
_LENGTH = Struct(">i")
_FLOAT = Struct(">d")


def encode(value: Any) -> tuple[bytes | None, int]:
    """Return an encoded parameter and its format, which is 1 for binary and 0 for text."""
    if isinstance(value, bytes):
        return value, 1
    if isinstance(value, str):
        return value.encode(), 1
    if isinstance(value, list):
        return _encode_list(value)
    return (None if value is None else _plain(value)), 0


def _plain(value: Any) -> bytes:
    """Encode a number, a boolean or None in the text format of array elements."""
    return b"NULL" if value is None else repr(value).encode()


def _encode_list(values: list[Any]) -> tuple[bytes, int]:
    """Encode a list as an array. Use the binary format if it contains strings or bytes, otherwise the text format."""
    if not any(isinstance(value, bytes | str) for value in values):
        return b"{%b}" % b",".join(map(_plain, values)), 0
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    words = [_ARRAY.pack(1, None in texts, BYTEA, len(texts), 1)]
    for text in texts:
        words += (_LENGTH.pack(-1),) if text is None else (_LENGTH.pack(len(text)), text)
    return b"".join(words), 1


def _integer(text: bytes) -> int:
    """Decode a binary integer."""
    return int.from_bytes(text, signed=True)


def _decode_array(text: bytes, element: Callable[[bytes], Any]) -> Iterator[Any]:
    """Yield the elements of a binary array.

    Args:
        text: The array.
        element: Function that decodes an element.
    """
    position = _ARRAY.size
    while position < len(text):
        (length,) = _LENGTH.unpack_from(text, position)
        position += _LENGTH.size
        yield None if length < 0 else element(text[position : position + length])
        position += max(length, 0)


DECODE: dict[int, Callable[[bytes], Any]] = {
    BOOL: lambda text: text == b"\1",
    BYTEA: lambda text: text,
    INT8: _integer,
    INT4: _integer,
    TEXT: bytes.decode,
    FLOAT8: lambda text: _FLOAT.unpack(text)[0],
    BYTEAS: lambda text: [*_decode_array(text, lambda element: element)],
    INT8S: lambda text: [*_decode_array(text, _integer)],
}


def decode_row(kinds: Sequence[Callable[[bytes], Any]], texts: Sequence[bytes | None]) -> tuple[Any, ...]:
    """Decode the columns of a row, each with its function from `DECODE`."""
    return tuple([None if text is None else kind(text) for kind, text in zip(kinds, texts, strict=True)])
