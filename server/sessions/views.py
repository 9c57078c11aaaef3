"""Sessions and environments as clients see them: plain JSON values.

The rule: pure. What a view needs is handed in.
"""

import time
from collections.abc import Mapping
from typing import Any, cast

import jsonpatch
import jsonpointer

from server.base.times import timestamp
from server.jsonio.strict import dumps
from server.protocol.results import Session
from server.sessions.recipes import Recipe, details_of
from server.stores.base import StoredSession


def session_view(
    session: StoredSession, version: int, keys: Mapping[str, str] | None, *, called_at: float | None = None
) -> Session:
    """Describe a session; it expires its TTL after `called_at`, which is by default now.

    Args:
        keys: Those of its participants' addresses, by name; None if it has only its agent's.
    """
    called_at = time.time() if called_at is None else called_at
    recipe, parent = Recipe.of(session), session.parent
    kept = {**recipe.kept, **details_of(session)}
    own: dict[str, Any] = {
        "session_id": session.id,
        **_paths(session.agent_key),
        "toolpacks": list(recipe.toolpacks),
        "toolpack_versions": dict(recipe.versions),
        "version": version,
        "labels": dict(session.labels),
        "created_at": timestamp(session.created_at),
        "expires_at": timestamp(called_at + session.ttl_seconds),
        "parent": parent and {"session_id": parent.session_id, "version": parent.version},
        "participants": keys and {name: _paths(key) for name, key in keys.items()},
    }
    # What is kept has the names by which the type shows it.
    rest = {name: kept.get(name) for name in Session.__annotations__ if name not in own}
    return cast("Session", own | rest)


def _paths(key: str) -> dict[str, str]:
    return {"agent_path": f"/agents/{key}", "mcp_path": f"/mcp/{key}"}


def json_patch(before: Any, after: Any) -> list[dict[str, Any]]:
    """Get a JSON Patch (RFC 6902) that leads from one JSON value to another."""
    left, right = _without_equal_members(before, after)
    patch: list[dict[str, Any]] = jsonpatch.make_patch(left, right).patch
    try:
        exact = dumps(jsonpatch.apply_patch(left, patch), sort_keys=True) == dumps(right, sort_keys=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException):
        exact = False
    # The library takes 1, 1.0 and true for equal; then the whole value is replaced.
    return patch if exact else [{"op": "replace", "path": "", "value": after}]


def _without_equal_members(before: Any, after: Any) -> tuple[Any, Any]:
    """Leave out the members of objects that are the same: the library walks and copies whatever it gets."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return before, after
    left, right = {**before}, {**after}
    for name in before.keys() & after.keys():
        if dumps(before[name]) == dumps(after[name]):
            del left[name], right[name]
        else:
            left[name], right[name] = _without_equal_members(before[name], after[name])
    return left, right
