"""Functions as agents get them described: in this server's own way, and in those of the usual model interfaces.

The rule: pure; a description is made from a registered function alone. `FORMATS` has them by name.
"""

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from server.packs.toolpack import PackFunction


def parameters_schema(function: PackFunction) -> dict[str, Any]:
    """Get the JSON Schema of a function's arguments: AgentDojo's, closed against arguments that it doesn't know."""
    schema: dict[str, Any] = function.function.parameters.model_json_schema()
    schema.setdefault("additionalProperties", False)
    return schema


def returns_schema(function: PackFunction) -> dict[str, Any] | None:
    """Get the JSON Schema of a function's result, as JSON goes out; None where its type tells nothing."""
    returned = function.function.return_type
    if returned is None:
        return None
    try:
        return TypeAdapter(returned).json_schema(mode="serialization") or None
    except Exception:  # noqa: BLE001 - an annotation may be anything, and what isn't checked needn't make sense
        return None


def native(function: PackFunction) -> dict[str, Any]:
    """Describe a function in this server's own way."""
    return {
        "name": function.name,
        "description": function.function.description,
        "parameters": parameters_schema(function),
        "returns": returns_schema(function),
        "toolpack": function.toolpack,
        "read_only": function.read_only,
    }


def openai(function: PackFunction) -> dict[str, Any]:
    """Describe a function as OpenAI's Chat Completions take it."""
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.function.description,
            "parameters": parameters_schema(function),
        },
    }


def anthropic(function: PackFunction) -> dict[str, Any]:
    """Describe a function as Anthropic's Messages take it."""
    return {
        "name": function.name,
        "description": function.function.description,
        "input_schema": parameters_schema(function),
    }


def gemini(function: PackFunction) -> dict[str, Any]:
    """Describe a function as a Gemini function declaration."""
    return {
        "name": function.name,
        "description": function.function.description,
        "parametersJsonSchema": parameters_schema(function),
    }


def mcp(function: PackFunction) -> dict[str, Any]:
    """Describe a function as a tool of the Model Context Protocol, which knows results that are objects only."""
    described = {
        "name": function.name,
        "description": function.function.description,
        "inputSchema": parameters_schema(function),
        "annotations": {"readOnlyHint": function.read_only},
    }
    returns = returns_schema(function)
    if returns and returns.get("type") == "object":
        described["outputSchema"] = returns
    return described


FORMATS: dict[str, Callable[[PackFunction], dict[str, Any]]] = {
    "native": native,
    "openai": openai,
    "anthropic": anthropic,
    "gemini": gemini,
    "mcp": mcp,
}
