"""JSON Schemas in the subset that OpenAI's API accepts.

The API rejects `oneOf`, `discriminator` and `prefixItems`, so these are replaced or removed. Some of its models
don't follow `$ref`. So each reference is replaced by its definition, unless the definition contains itself or the
schema would become too large.
"""

from collections.abc import Mapping
from typing import Any

from toolpack_server.jsonio.strict import dumps

_MAX_NODES = 2_000  # max nodes of a schema without references: ten times as many as the largest function of tau2 needs
VALUES = ("const", "default", "enum", "examples")  # keywords whose values are data, not schemas
BY_NAME = ("properties", "patternProperties", "$defs")  # keywords whose keys are the author's names


class _NodeLimitError(Exception):
    """Raised if a schema without references would have too many nodes."""


def openai_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without the keywords that OpenAI rejects. The result accepts every value that `schema` accepts.

    Unlike `schema`, it also accepts the elements of a tuple in another order.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    recursive = {name for name in definitions if name in _reachable(name, definitions)}
    try:
        return _Translation(definitions, recursive).translate_root(schema)
    except _NodeLimitError:
        return _Translation(definitions, {*definitions}).translate_root(schema)


class _Translation:
    """Translation of one schema. References to the definitions in `referenced` aren't replaced."""

    def __init__(self, definitions: Mapping[str, Any], referenced: set[str]) -> None:
        self._definitions = definitions
        self._referenced = referenced
        self._nodes = 0

    def translate_root(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the translation of the whole schema, with the definitions that are still referenced."""
        translated: dict[str, Any] = self._translate({name: value for name, value in schema.items() if name != "$defs"})
        if self._referenced:
            translated["$defs"] = {name: self._translate(self._definitions[name]) for name in sorted(self._referenced)}
        return translated

    def _translate(self, schema: Any) -> Any:
        """Return the translation of a part of the schema. Raise `_NodeLimitError` if there are too many nodes."""
        if isinstance(schema, list):
            return [self._translate(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        self._nodes += 1
        if self._nodes > _MAX_NODES and self._referenced != {*self._definitions}:
            raise _NodeLimitError
        name = _target(schema)
        if name in self._definitions and name not in self._referenced:
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            return self._translate({**self._definitions[name], **siblings})
        translated = {}
        for key, value in schema.items():
            if key in BY_NAME:
                translated[key] = {name: self._translate(member) for name, member in value.items()}
            elif key == "oneOf":
                translated["anyOf"] = self._translate(value)
            elif key == "prefixItems":
                unique = {dumps(each): each for each in map(self._translate, value)}
                translated["items"] = {"anyOf": [*unique.values()]} if len(unique) > 1 else next(iter(unique.values()))
            elif key != "discriminator":
                translated[key] = value if key in VALUES else self._translate(value)
        return translated


def _target(schema: Mapping[str, Any]) -> str:
    """Return the name of the definition that a schema refers to, or "" if it isn't a reference."""
    reference = schema.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else ""


def _reachable(name: str, definitions: Mapping[str, Any]) -> set[str]:
    """Return the names of the definitions that a definition refers to, directly or through other definitions."""
    targets: set[str] = set()
    pending = [definitions[name]]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            target = _target(node)
            if target in definitions and target not in targets:
                targets.add(target)
                pending.append(definitions[target])
            pending += node.values()
    return targets
