"""The documents that describe the server: OpenRPC, and JSON Schemas of the envelope and of each toolpack.

The rule: pure. Everything is generated from the parameters' classes, the results' types, the table of error codes and
the registered functions, so that nothing is described twice.
"""

from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from server.packs.formats import native
from server.packs.toolpack import Toolpack
from server.results import RESULTS, Envelope
from server.rpc.codes import CODES, FAILURE_CODES, STANDARD
from server.rpc.method import Method

DIALECT = "https://json-schema.org/draft/2020-12/schema"


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
            "description": "Functions, and the worlds they change, for agents. POST /rpc accepts all methods; "
            "POST /agents/<key> accepts list_functions, run_function, get_task and submit_answer, without session_id; "
            "get_task answers there with the prompt, and takes no task. "
            "POST /mcp/<key> speaks MCP instead.",
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
