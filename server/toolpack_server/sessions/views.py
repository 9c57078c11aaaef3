"""Descriptions of sessions, and JSON Patches, as clients get them.

This module doesn't read the store. A feature adds fields to the descriptions by extending their result type.
"""

import time
from typing import Any, cast

import jsonpatch
import jsonpointer

from toolpack_server.base.times import timestamp
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.results import Session
from toolpack_server.sessions.addresses import Addresses
from toolpack_server.sessions.identity import Identities
from toolpack_server.sessions.recipes import Recipe, details_of
from toolpack_server.stores.base import StoredSession


class SessionViews:
    """Creates descriptions of sessions.

    Attributes:
        shape: The type of a description. For a field that a feature adds, the description shows the session's stored
            data with the same name. Only the field with the paths of additional addresses is computed.
    """

    def __init__(self, addresses: Addresses, identities: Identities) -> None:
        self.shape: type = Session
        self._addresses = addresses
        self._identities = identities

    def of(self, session: StoredSession, version: int, *, called_at: float | None = None) -> Session:
        """Return the description of a session.

        Args:
            session: The session.
            version: The version to show.
            called_at: Time of the last call, from which the expiry is computed. Default: now.
        """
        called_at = time.time() if called_at is None else called_at
        recipe, parent = Recipe.of(session), session.parent
        own: dict[str, Any] = {
            "session_id": session.id,
            **self.paths(session.agent_key),
            "toolpacks": list(recipe.toolpacks),
            "toolpack_versions": dict(recipe.versions),
            "version": version,
            "labels": dict(session.labels),
            "created_at": timestamp(session.created_at),
            "expires_at": timestamp(called_at + session.ttl_seconds),
            "parent": parent and {"session_id": parent.session_id, "version": parent.version},
        }
        member = self._addresses.named.member
        if member:
            keys = self._identities.keys(session)
            own[member] = keys and {name: self.paths(key) for name, key in keys.items()}
        feature_options = {**recipe.feature_options, **details_of(session)}
        rest = {name: feature_options.get(name) for name in self.shape.__annotations__ if name not in own}
        return cast("Session", own | rest)

    def paths(self, key: str) -> dict[str, str]:
        """Return the URL paths of the address with this key, by the field of results that contains the path."""
        return {name: path.replace("{key}", key) for name, path in self._addresses.paths.items()}


def json_patch(before: Any, after: Any) -> list[dict[str, Any]]:
    """Return a JSON Patch (RFC 6902) that changes one JSON value into another."""
    left, right = _without_equal_members(before, after)
    patch: list[dict[str, Any]] = jsonpatch.make_patch(left, right).patch
    try:
        exact = dumps(jsonpatch.apply_patch(left, patch), sort_keys=True) == dumps(right, sort_keys=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException):
        exact = False
    # The library treats 1, 1.0 and true as equal. If its patch is wrong for this reason, replace the whole value
    # instead.
    return patch if exact else [{"op": "replace", "path": "", "value": after}]


def _without_equal_members(before: Any, after: Any) -> tuple[Any, Any]:
    """Return two values without the fields that are equal in both. The library is slow with large values."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return before, after
    left, right = {**before}, {**after}
    for name in before.keys() & after.keys():
        if dumps(before[name]) == dumps(after[name]):
            del left[name], right[name]
        else:
            left[name], right[name] = _without_equal_members(before[name], after[name])
    return left, right
