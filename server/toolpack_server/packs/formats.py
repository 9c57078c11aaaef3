"""Descriptions of toolpacks for clients, and of functions for agents in the formats of common model APIs.

`FORMATS` maps the name of each format to its converter. A description depends only on the registration of the function.
"""

import re
from collections.abc import Callable
from typing import Any

from pydantic import PydanticUserError, TypeAdapter

from toolpack_server.packs.names import without_dots
from toolpack_server.packs.openai_schema import BY_NAME, VALUES, openai_schema
from toolpack_server.packs.pack_function import PackFunction
from toolpack_server.packs.sources import Source
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.volumes.volume import Volume


def parameters_schema(function: PackFunction) -> dict[str, Any]:
    """Return the JSON Schema of a function's arguments. It is AgentDojo's schema, but forbids unknown arguments.

    Unknown keys of nested objects are also forbidden if the function's models forbid them.
    """
    schema: dict[str, Any] = function.function.parameters.model_json_schema()
    objects = [schema]
    if getattr(function.function, "forbids_unknown_keys", False):
        objects += [each for each in schema.get("$defs", {}).values() if "properties" in each]
    for each in objects:
        each.setdefault("additionalProperties", False)
    return schema


def returns_schema(function: PackFunction) -> dict[str, Any] | None:
    """Return the JSON Schema of a function's result, or None if the function has no usable return annotation."""
    returned = function.function.return_type
    if returned is None:
        return None
    try:
        return TypeAdapter(returned).json_schema(mode="serialization") or None
    except Exception:  # noqa: BLE001 - an annotation can be any object, and results aren't checked against it
        return None


def describe_toolpack(toolpack: Toolpack, source: Source | None) -> dict[str, Any]:
    """Return the description of a toolpack for clients. An environment without a JSON schema gets an empty schema."""
    options = toolpack.options
    try:
        environment = toolpack.environment_class.model_json_schema(mode="serialization")
    except PydanticUserError:
        environment = {}
    for name, schema in environment.get("properties", {}).items():
        default = getattr(toolpack.environment_class.model_fields.get(name), "default", None)
        if isinstance(default, Volume):
            schema.pop("default", None)
            schema.update(default.json_schema(default))
    from_package = {"distribution": source.distribution, "version": source.version} if source else {}
    return {
        "name": toolpack.name,
        "description": toolpack.description,
        **{name: value for name, value in from_package.items() if value is not None},
        "opt_in": toolpack.opt_in,
        **({"options": options.model_json_schema()} if options else {}),
        "environment": environment,
        "functions": [*toolpack.functions],
        **toolpack.details(),
    }


def native(function: PackFunction) -> dict[str, Any]:
    """Return a function's description in this server's own format."""
    returns = returns_schema(function)
    return {
        "name": function.name,
        "description": function.function.description,
        "parameters": parameters_schema(function),
        **({} if returns is None else {"returns": returns}),
        "toolpack": function.toolpack,
        "read_only": function.read_only,
    }


def openai(function: PackFunction) -> dict[str, Any]:
    """Return a function as a tool of OpenAI's Chat Completions API."""
    return {
        "type": "function",
        "function": {
            "name": without_dots(function.name),
            "description": function.function.description,
            "parameters": openai_schema(parameters_schema(function)),
        },
    }


def anthropic(function: PackFunction) -> dict[str, Any]:
    """Return a function as a tool of Anthropic's Messages API."""
    return {
        "name": without_dots(function.name),
        "description": function.function.description,
        "input_schema": parameters_schema(function),
    }


def gemini(function: PackFunction) -> dict[str, Any]:
    """Return a function as a function declaration of the Gemini API."""
    return {
        "name": function.name,
        "description": function.function.description,
        "parametersJsonSchema": parameters_schema(function),
    }


def mcp(function: PackFunction) -> dict[str, Any]:
    """Return a function as a tool of the Model Context Protocol.

    The tool has no `outputSchema`, because the server doesn't check results against their annotation. A client would
    raise an exception for a result that doesn't match, although the call was committed.
    """
    return {
        "name": without_dots(function.name),
        "description": function.function.description,
        "inputSchema": without_repeated_titles(parameters_schema(function)),
        "annotations": {"readOnlyHint": function.read_only, "openWorldHint": False},
    }


def without_repeated_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's schema without titles that only repeat a name. This makes a list of tools a sixth shorter."""
    shortened: dict[str, Any] = _without_titles({key: value for key, value in schema.items() if key != "title"}, "")
    return shortened


def _without_titles(schema: Any, name: str) -> Any:
    """Return a schema without titles that repeat a name, in the schema itself and in its parts."""
    if isinstance(schema, list):
        return [_without_titles(each, name) for each in schema]
    if not isinstance(schema, dict):
        return schema
    parts: dict[str, Any] = {}
    for key, value in schema.items():
        if key in BY_NAME:
            parts[key] = {member: _without_titles(each, member) for member, each in value.items()}
        elif key in VALUES or (key == "title" and _letters(value) != _letters(name)):
            parts[key] = value
        elif key != "title":
            parts[key] = _without_titles(value, name)
    return parts


def _letters(text: str) -> str:
    """Return the letters and digits of a string, to compare a title such as "Due Date" with the name `due_date`."""
    return re.sub(r"[\W_]", "", text).casefold()


FORMATS: dict[str, Callable[[PackFunction], dict[str, Any]]] = {
    "native": native,
    "openai": openai,
    "anthropic": anthropic,
    "gemini": gemini,
    "mcp": mcp,
}
