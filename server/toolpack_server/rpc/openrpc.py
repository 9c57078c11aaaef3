"""The document that describes the server: OpenRPC.

Pure. It is generated from the methods' classes and the table of error codes, so that nothing is described
twice.
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from toolpack_server.rpc.codes import CODES, FAILURE_CODES, STANDARD
from toolpack_server.rpc.method import Method, agents_methods, clients_methods


def openrpc_document(methods: Sequence[type[Method]], more: Iterable[str] = ()) -> dict[str, Any]:
    """Get the OpenRPC document of all methods; `more` are further sentences of its description."""
    errors = _errors()
    schemas: dict[str, Any] = {}
    described = [_method(method, list(errors), schemas) for method in clients_methods(methods)]
    return {
        "openrpc": "1.3.2",
        "info": {
            "title": "Toolpack Server",
            "description": "Functions, and the worlds they change, for agents. POST /rpc accepts all methods; "
            + " ".join([f"POST /agents/<key> accepts {_agents_text(methods)}.", *more]),
            "version": version("toolpack-server"),
            "license": {"name": "MIT"},
        },
        "methods": described,
        "components": {"schemas": dict(sorted(schemas.items())), "errors": errors},
    }


def _agents_text(methods: Sequence[type[Method]]) -> str:
    """Say which methods agents' addresses have, and how those differ that only they have."""
    declared = [method.declared for method in agents_methods(methods)]
    names = [each.name for each in declared]
    differing = [f"{each.name} {each.agents_only}" for each in declared if each.agents_only]
    return "; ".join([f"{', '.join(names[:-1])} and {names[-1]}, without session_id", *differing])


def _method(method: type[Method], errors: list[str], schemas: dict[str, Any]) -> dict[str, Any]:
    template = "#/components/schemas/{model}"
    parameters = method.model_json_schema(ref_template=template)
    result = TypeAdapter(method.declared.result).json_schema(ref_template=template, mode="serialization")
    schemas.update(parameters.pop("$defs", {}))
    schemas.update(result.pop("$defs", {}))
    required = parameters.get("required", [])
    properties = parameters.get("properties", {})
    return {
        "name": method.declared.name,
        "summary": method.declared.summary,
        "paramStructure": "either",
        "params": [
            {
                "name": name,
                "description": properties[name].pop("description", ""),
                "required": name in required,
                "schema": properties[name],
            }
            for name in method.names()
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
