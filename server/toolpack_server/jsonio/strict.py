"""Read and write the JSON of requests and records: fast, strict, and exact for integers of up to 308 digits.

Only RFC 8259 is read and written. orjson, unlike `json`, refuses lone surrogates, NaN and invalid UTF-8, but
it reads integers above 64 bits as floats, so text that may contain one is read again by `json`.
"""

import hashlib
import json
import re
from typing import Any

import orjson

Fragment = orjson.Fragment

SHORT_BYTES = 2048

# A search for 19 digits takes ten times as long as making all digits alike, and two hundred times where most are.
_DIGITS_ALIKE = bytes(0x30 if chr(byte) in "0123456789" else 0x20 for byte in range(256))
_LONG_INTEGER = b"0" * 19
MOST_DIGITS = 308  # of an integer that a float can hold, as orjson reads it
_TOO_LONG_INTEGER = b"0" * (MOST_DIGITS + 1)


# A string, or an unterminated one: a search from each quote of an invalid body would take quadratic time.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)

MAX_EXACT = 2**53 - 1  # up to this, integers are exact in every JSON parser (RFC 8259, section 6)
_DIGITS = re.compile(rb"\d{16}")
_LONG_INTEGERS = re.compile(rb"(?<![\d.eE+-])-?\d{16,}+(?![.eE])")


def loads(text: bytes) -> Any:
    """Read JSON text; `ValueError` if it isn't JSON, or is nested too deeply."""
    value = orjson.loads(text)
    if _LONG_INTEGER in text.translate(_DIGITS_ALIKE):
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    return value


def check_integers(text: bytes) -> None:
    """Raise `ValueError` if JSON text has an integer that is too long for `loads`, and for others who read JSON."""
    if _TOO_LONG_INTEGER in text.translate(_DIGITS_ALIKE):
        try:
            loads(text)
        except ValueError:
            raise ValueError(f"there, an integer has at most {MOST_DIGITS} digits") from None


def has_inexact_integer(text: bytes) -> bool:
    """Whether JSON text has an integer that a double can't hold exactly, as programs in JavaScript read them all."""
    if not _DIGITS.search(text):
        return False
    return any(abs(int(found)) > MAX_EXACT for found in _LONG_INTEGERS.findall(STRING.sub(b'""', text)))


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Write JSON text; a `Fragment` is inserted as it is. `TypeError` if a value has no JSON form."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
        # However short it is, orjson's own object may keep the 4 KB into which it was written.
        return bytes(memoryview(text)) if len(text) < SHORT_BYTES else text
    except TypeError:
        # Integers above 64 bits; anything else fails here, too.
        return json.dumps(
            value, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()


def cut(text: bytes) -> dict[str, Any]:
    return {"$cut": {"bytes": len(text), "digest": hashlib.blake2b(text, digest_size=16).hexdigest()}}


def cut_if_longer(text: bytes, max_bytes: int) -> bytes:
    return text if len(text) <= max_bytes else dumps(cut(text))
