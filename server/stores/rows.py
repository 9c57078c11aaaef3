"""A session's columns that are JSON, as bytes: for the stores that keep bytes.

The rule: what comes out equals what went in. orjson is fast, but refuses integers above 64 bits and lone surrogates,
and reads such integers as floats; `json` then takes over, and a leading space, which JSON allows, tells the reader.

Toolpacks, options and environment are one column, the *recipe*: a thousand forks have the same, so a store keeps it
once, under its digest.
"""

import hashlib
import json
from typing import Any

import orjson

from server.stores.base import StoredSession


def dump(value: object) -> bytes:
    """Write a JSON value."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b" " + json.dumps(value).encode()


def load(text: bytes) -> Any:
    """Read a JSON value that `dump` wrote."""
    return json.loads(text) if text.startswith(b" ") else orjson.loads(text)


class Recipes:
    """Writes recipes, each once for sessions that are created together."""

    def __init__(self) -> None:
        self._written: dict[tuple[object, ...], tuple[bytes, bytes]] = {}

    def dump(self, session: StoredSession) -> tuple[bytes, bytes]:
        """Get the digest and the text of a session's recipe."""
        same = (
            session.toolpacks,
            dump(session.options),
            id(session.environment),
        )  # forks share it, and it can be large
        if same not in self._written:
            text = dump([session.toolpacks, session.options, session.environment])
            self._written[same] = (hashlib.blake2b(text, digest_size=16).digest(), text)
        return self._written[same]
