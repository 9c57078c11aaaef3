"""OpenRPC document of the server.

It is generated from the methods' classes and the table of error codes, so each text has one source. The functions have
no side effects.
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from toolpack_server.rpc.codes import CODES, FAILURE_CODES, STANDARD
from toolpack_server.rpc.method import Method, agents_methods, clients_methods


def openrpc_document(methods: Sequence[type[Method]], sentences: Iterable[str] = ()) -> dict[str, Any]:
    """Return the OpenRPC document of all methods.

    Args:
        sentences: Sentences to append to the document's description.
    """
    errors = _errors()
    schemas: dict[str, Any] = {}
    described = [_method(method, list(errors), schemas) for method in clients_methods(methods)]
    return {
        "openrpc": "1.3.2",
        "info": {
            "title": "Toolpack Server",
            "description": "Sessions in which agents call functions that change an environment. POST /rpc accepts all "
            + " ".join([f"methods; POST /agents/<key> accepts {_agents_text(methods)}.", *sentences]),
            "version": version("toolpack-server"),
            "license": {"name": "MIT"},
        },
        "methods": described,
        "components": {"schemas": dict(sorted(schemas.items())), "errors": errors},
    }


def _agents_text(methods: Sequence[type[Method]]) -> str:
    """Return the names of the agents' methods as text, and the differences of methods that only agents have."""
    declarations = [method.declared for method in agents_methods(methods)]
    names = [declared.name for declared in declarations]
    differences = [f"{declared.name} {declared.agents_only}" for declared in declarations if declared.agents_only]
    return "; ".join([f"{', '.join(names[:-1])} and {names[-1]}, without session_id", *differences])


def _method(method: type[Method], errors: list[str], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a method. Add the schemas that the description refers to to `schemas`."""
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
    """Return all errors by name, such as `E32001`. If an exception has a docstring, it is the error's message."""
    messages: dict[int, str] = dict(STANDARD)
    for kind, code in CODES.items():
        if code not in messages:
            messages[code] = (kind.__doc__ or "").partition("\n")[0]
    failures = {FAILURE_CODES[failure]: failure.value.replace("_", " ") for failure in FAILURE_CODES}
    for code, name in failures.items():
        messages.setdefault(code, f"The call failed: {name}.")
    return {f"E{-code}": {"code": code, "message": message} for code, message in sorted(messages.items(), reverse=True)}
