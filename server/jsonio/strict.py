"""JSON as it goes over the wire and into records: fast, strict, and exact for integers of up to 300 digits.

The rule: nothing but RFC 8259 comes in or goes out. orjson does the work; it alone refuses lone surrogates, NaN and
broken UTF-8, but it turns integers above 64 bits into floats, so text that may hold one is read again by `json`.
"""

import json
import re
from typing import Any

import orjson

Fragment = orjson.Fragment

_LONG_INTEGER = re.compile(rb"\d{19}")


def loads(text: bytes) -> Any:
    """Read JSON text.

    Raises:
        ValueError: It is no JSON.
    """
    value = orjson.loads(text)
    if _LONG_INTEGER.search(text):
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    return value


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Write JSON text; a `Fragment` in it is JSON text already.

    Raises:
        TypeError: It has no JSON form.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:
        # Integers above 64 bits; whatever else is wrong fails here too.
        return json.dumps(
            value, sort_keys=sort_keys, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
