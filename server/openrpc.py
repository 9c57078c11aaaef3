"""The documents that describe the server: OpenRPC, and JSON Schemas of the envelope and of each toolpack.

The rule: pure; every word comes from the methods' parameter classes, the error table and the registered functions, so
that no description is kept twice.
"""

from importlib.metadata import version
from typing import Any, Literal

from pydantic import JsonValue, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from server.function_formats import native
from server.jsonrpc import CODES, FAILURE_CODES, STANDARD
from server.methods import Method
from server.toolpack import Toolpack

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Envelope(TypedDict):
    """A call's result or its error; `result` is "" where there is an error."""

    result: JsonValue
    error: str | None


class Parent(TypedDict):
    """What a session was forked from."""

    session_id: str
    version: int


class Session(TypedDict):
    """A session."""

    session_id: str
    agent_path: str
    toolpacks: list[str]
    version: int
    labels: dict[str, str]
    created_at: str
    expires_at: str
    parent: Parent | None


class Function(TypedDict):
    """A function, described in this server's own way."""

    name: str
    description: str
    parameters: dict[str, JsonValue]
    returns: dict[str, JsonValue] | None
    toolpack: str
    read_only: bool


class FunctionList(TypedDict):
    """The functions, in registration order; each a `Function` in the native format."""

    result: list[Function] | list[dict[str, JsonValue]]
    error: None


class CallRecord(TypedDict):
    """A call, as it went."""

    index: int
    kind: Literal["call"]
    call_id: str | None
    function: str
    kwargs: dict[str, JsonValue]
    result: JsonValue
    error: str | None
    version: int
    started_at: str
    duration_ms: float


class ResetRecord(TypedDict):
    """A reset."""

    index: int
    kind: Literal["reset"]
    to_version: int
    version: int
    started_at: str
    duration_ms: float


class Export(TypedDict):
    """An exact snapshot; `snapshot` is base64."""

    format: str
    toolpacks: list[str]
    fingerprints: dict[str, str]
    version: int
    snapshot: str


RESULTS: dict[str, Any] = {
    "create_session": Session,
    "list_functions": FunctionList,
    "run_function": Envelope,
    "get_session": Session,
    "get_environment": JsonValue,
    "diff_environment": list[dict[str, JsonValue]],
    "get_trace": list[CallRecord | ResetRecord],
    "fork_session": list[Session],
    "reset_session": Session,
    "close_session": Literal[True],
    "close_sessions": int,
    "list_sessions": list[Session],
    "export_session": Export,
    "rpc.discover": dict[str, JsonValue],
}


def envelope_schema() -> dict[str, Any]:
    """Get the JSON Schema of the envelope."""
    return {"$schema": DIALECT, **TypeAdapter(Envelope).json_schema()}


def toolpack_schema(toolpack: Toolpack) -> dict[str, Any]:
    """Describe a toolpack: its options, its environment and its functions."""
    options = toolpack.options
    return {
        "toolpack": toolpack.name,
        "opt_in": toolpack.opt_in,
        "options": options.model_json_schema() if options else None,
        "environment": toolpack.environment_class.model_json_schema(mode="serialization"),
        "functions": [native(function) for function in toolpack.functions.values()],
    }


def openrpc_document(methods: list[Method]) -> dict[str, Any]:
    """Get the OpenRPC document of some methods."""
    errors = _errors()
    schemas: dict[str, Any] = {}
    described = [_method(method, list(errors), schemas) for method in methods]
    return {
        "openrpc": "1.3.2",
        "info": {
            "title": "Toolpack Server",
            "description": "Functions, and the worlds they change, for agents. POST /rpc takes all of this; "
            "POST /agents/<key> takes list_functions and run_function without session_id.",
            "version": version("toolpack-server"),
            "license": {"name": "MIT"},
        },
        "methods": described,
        "components": {"schemas": dict(sorted(schemas.items())), "errors": errors},
    }


def _method(method: Method, errors: list[str], schemas: dict[str, Any]) -> dict[str, Any]:
    template = "#/components/schemas/{model}"
    parameters = method.params.model_json_schema(ref_template=template)
    result = TypeAdapter(RESULTS[method.name]).json_schema(ref_template=template, mode="serialization")
    schemas.update(parameters.pop("$defs", {}))
    schemas.update(result.pop("$defs", {}))
    required = parameters.get("required", [])
    properties = parameters.get("properties", {})
    return {
        "name": method.name,
        "summary": method.summary,
        "paramStructure": "either",
        "params": [
            {
                "name": name,
                "description": properties[name].pop("description", ""),
                "required": name in required,
                "schema": properties[name],
            }
            for name in sorted(properties, key=lambda name: name != "session_id")
        ],
        "result": {"name": "result", "schema": result},
        "errors": [{"$ref": f"#/components/errors/{name}"} for name in errors],
    }


def _errors() -> dict[str, Any]:
    found: dict[int, str] = dict(STANDARD)
    for kind, code in CODES.items():
        if code not in found:
            found[code] = (kind.__doc__ or "").partition("\n")[0]
    named = {FAILURE_CODES[failure]: failure.value.replace("_", " ") for failure in FAILURE_CODES}
    for code, name in named.items():
        found.setdefault(code, f"The call failed: {name}.")
    return {f"E{-code}": {"code": code, "message": message} for code, message in sorted(found.items(), reverse=True)}
