"""Reading and writing the JSON of requests and records: fast, strict, and exact for integers of up to 308 digits.

Unlike `json`, orjson refuses lone surrogates, NaN and invalid UTF-8. But orjson reads integers above 64 bits as floats,
so text that might contain such an integer is read again with `json`.
"""

import hashlib
import json
import re
from typing import Any

import orjson

Fragment = orjson.Fragment

SHORT_BYTES = 2048

# Replacing every digit by 0 and searching for 19 zeros is 10 to 200 times as fast as a regular expression.
_DIGITS_TO_ZERO = bytes(0x30 if chr(byte) in "0123456789" else 0x20 for byte in range(256))
_LONG_INTEGER = b"0" * 19
MAX_DIGITS = 308  # max digits of an integer: a longer integer overflows orjson's float
_TOO_LONG_INTEGER = b"0" * (MAX_DIGITS + 1)


# Also matches an unterminated string. Otherwise, an invalid body with many quotes would take quadratic time.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)

MAX_EXACT = 2**53 - 1  # up to this, integers are exact in every JSON parser (RFC 8259, section 6)
_DIGITS = re.compile(rb"\d{16}")
_LONG_INTEGERS = re.compile(rb"(?<![\d.eE+-])-?\d{16,}+(?![.eE])")


def loads(text: bytes) -> Any:
    """Return the value of JSON text. Raise `ValueError` if the text isn't JSON, or is nested too deeply."""
    value = orjson.loads(text)
    if _LONG_INTEGER in text.translate(_DIGITS_TO_ZERO):
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    return value


def check_integers(text: bytes) -> None:
    """Raise `ValueError` if JSON text contains an integer that is too long for `loads` and for other JSON parsers."""
    if _TOO_LONG_INTEGER in text.translate(_DIGITS_TO_ZERO):
        try:
            loads(text)
        except ValueError:
            raise ValueError(f"an integer may have at most {MAX_DIGITS} digits") from None


def has_inexact_integer(text: bytes) -> bool:
    """Return whether JSON text contains an integer that a double, and so JavaScript, can't represent exactly."""
    if not _DIGITS.search(text):
        return False
    return any(abs(int(digits)) > MAX_EXACT for digits in _LONG_INTEGERS.findall(STRING.sub(b'""', text)))


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return a value as JSON text, with each `Fragment` inserted unchanged.

    Raise `TypeError` if it has no JSON form.
    """
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
        # The bytes object from orjson can occupy a buffer of 4 KB even if the text is short, so copy it.
        return bytes(memoryview(text)) if len(text) < SHORT_BYTES else text
    except TypeError:
        # `json` writes integers above 64 bits, which orjson refuses. For any other problem, `json` also raises.
        return json.dumps(
            value, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()


def cut(text: bytes) -> dict[str, Any]:
    """Return the placeholder for a long text: its size in bytes and its digest."""
    return {"$cut": {"bytes": len(text), "digest": hashlib.blake2b(text, digest_size=16).hexdigest()}}


def cut_if_longer(text: bytes, max_bytes: int) -> bytes:
    """Return JSON text, or its placeholder if it is longer than `max_bytes`."""
    return text if len(text) <= max_bytes else dumps(cut(text))
