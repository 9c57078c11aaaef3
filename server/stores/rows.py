"""The JSON columns of a session as bytes, for the stores that keep bytes.

The rule: reading gives what was written. orjson is fast, but refuses integers above 64 bits and lone surrogates, and
reads such integers as floats. Such values are written by `json`, marked with a leading space, which JSON allows.

Toolpacks, options and environment are one column, the *recipe*: all forks of a session have the same, so a store keeps
it once, under its digest.
"""

import hashlib
import json
from typing import Any

import orjson

from server.errors import StateDamagedError
from server.stores.base import StoredSession


def dump(value: object) -> bytes:
    """Write a JSON value."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return b" " + json.dumps(value).encode()


def load(text: bytes) -> Any:
    """Read a JSON value that `dump` wrote.

    Raises:
        StateDamagedError: It isn't JSON.
    """
    try:
        return json.loads(text) if text.startswith(b" ") else orjson.loads(text)
    except ValueError:
        raise StateDamagedError("A row of the store is damaged: restore a backup, or close the session.") from None


class Recipes:
    """Encodes recipes, each only once for sessions that are created together."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[object, ...], tuple[bytes, bytes]] = {}

    def dump(self, session: StoredSession) -> tuple[bytes, bytes]:
        """Get the digest and the text of a session's recipe."""
        # By id, as forks share the environment, which can be large.
        key = (session.toolpacks, dump(session.options), id(session.environment))
        if key not in self._encoded:
            text = dump([session.toolpacks, session.options, session.environment])
            self._encoded[key] = (hashlib.blake2b(text, digest_size=16).digest(), text)
        return self._encoded[key]
