"""JSON Schemas in the subset that OpenAI's API takes.

It refuses `oneOf`, `discriminator` and `prefixItems`, and some of its models don't follow `$ref`. So a reference is
replaced by its definition, unless the definition contains itself or the schema would become too large.
"""

from collections.abc import Mapping
from typing import Any

from toolpack_server.jsonio.strict import dumps

_MAX_NODES = 2_000  # of a schema without references: ten times those of the largest function of tau2
_VALUES = ("const", "default", "enum", "examples")  # keywords whose values are data, not schemas
_BY_NAME = ("properties", "patternProperties", "$defs")  # keywords whose members have names of the author's


class _NodeLimitError(Exception):
    pass


def openai_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that accepts what `schema` does, without what OpenAI refuses.

    The elements of a tuple may then come in any order.
    """
    definitions: dict[str, Any] = schema.get("$defs", {})
    recursive = {name for name in definitions if name in _reachable(name, definitions)}
    try:
        return _Translation(definitions, recursive).of_root(schema)
    except _NodeLimitError:
        return _Translation(definitions, {*definitions}).of_root(schema)


class _Translation:
    """The translation of one schema; references to definitions in `kept` stay."""

    def __init__(self, definitions: Mapping[str, Any], kept: set[str]) -> None:
        self._definitions = definitions
        self._kept = kept
        self._nodes = 0

    def of_root(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        translated: dict[str, Any] = self._of({name: value for name, value in schema.items() if name != "$defs"})
        if self._kept:
            translated["$defs"] = {name: self._of(self._definitions[name]) for name in sorted(self._kept)}
        return translated

    def _of(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._of(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        self._nodes += 1
        if self._nodes > _MAX_NODES and self._kept != {*self._definitions}:
            raise _NodeLimitError
        name = _target(schema)
        if name in self._definitions and name not in self._kept:
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            return self._of({**self._definitions[name], **beside})
        translated = {}
        for key, value in schema.items():
            if key in _BY_NAME:
                translated[key] = {each: self._of(below) for each, below in value.items()}
            elif key == "oneOf":
                translated["anyOf"] = self._of(value)
            elif key == "prefixItems":
                unique = {dumps(each): each for each in map(self._of, value)}
                translated["items"] = {"anyOf": [*unique.values()]} if len(unique) > 1 else next(iter(unique.values()))
            elif key != "discriminator":
                translated[key] = value if key in _VALUES else self._of(value)
        return translated


def _target(schema: Mapping[str, Any]) -> str:
    reference = schema.get("$ref")
    return reference.removeprefix("#/$defs/") if isinstance(reference, str) else ""


def _reachable(name: str, definitions: Mapping[str, Any]) -> set[str]:
    """Return the definitions to which a definition refers, directly or through others."""
    found: set[str] = set()
    waiting = [definitions[name]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            target = _target(node)
            if target in definitions and target not in found:
                found.add(target)
                waiting.append(definitions[target])
            waiting += node.values()
    return found
