"""The Python client's methods as source code, written from the methods' classes.

Pure. The code is formatted as all code here is: what doesn't fit into a line has a line for each item.
"""

import json
import typing
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from textwrap import indent, wrap
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from toolpack_server.rpc.method import Method, agents_methods, clients_methods

WIDTH = 120
HEAD = '''"""The methods of the clients: their parameters, and the types of their results.

Written by `python -m tools.schemas` from the server's methods: don't edit it. What is done to send a request is in
`requests`; the functions here have no bodies.
"""
# mypy: disable-error-code="empty-body"
'''
AGENTS = "The methods of an agent's address, where the session is implied."
CLIENTS = "The methods, with their parameters and results; the server's OpenRPC document describes each."
REPEATED = {"session_id": "The session.", "function": "The function's name."}  # only repeat a name: omitted
ACCEPTED: dict[Any, type] = {dict: Mapping, list: Sequence}  # types of arguments that stand for the server's


def client_code(methods: Iterable[type[Method]]) -> str:
    methods, writer = [*methods], _ClientWriter()
    agents = writer.clients("AgentMethods", AGENTS, agents_methods(methods))
    clients = writer.clients("ClientMethods", CLIENTS, clients_methods(methods))
    return f"{HEAD}\n" + "\n\n".join([writer.imports(), *writer.results.values(), agents, clients])


class _ClientWriter:
    """Writes classes of methods, and knows what they import.

    Attributes:
        results: The types of results to which features have added members, by name; no module has them.
    """

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self._imported: defaultdict[str, set[str]] = defaultdict(set)

    def imports(self) -> str:
        lines = defaultdict(list)
        for module, names in sorted(self._imported.items()):
            line = f"from {module} import {', '.join(sorted(names))}"
            group = 2 if module.startswith(("server.", "toolpack_server.")) else module == "typing_extensions"
            lines[group].append(line if len(line) <= WIDTH else _fitted(f"from {module} import (", sorted(names), ")"))
        return "\n\n".join("\n".join(lines[group]) for group in sorted(lines)) + "\n"

    def clients(self, name: str, summary: str, methods: Iterable[type[Method]]) -> str:
        members = "\n\n".join(indent(self._method(method), "    ") for method in methods)
        return f'class {name}:\n    """{summary}"""\n\n{members}\n'

    def _method(self, method: type[Method]) -> str:
        declared, fields = method.declared, {name: method.model_fields[name] for name in method.names()}
        first = [name for name, field in fields.items() if field.is_required() or name in declared.positional]
        others = [name for name in fields if name not in first]
        arguments = [self._argument(name, fields[name]) for name in [*first, *others]]
        arguments = ["self", *arguments[: len(first)], *(["*"] if others else []), *arguments[len(first) :]]
        self._imported["toolpack_server.client.requests"].add("requests")
        name, result = declared.name.removeprefix("rpc."), self._type(declared.result)
        return "\n".join(
            [
                f'@requests("{declared.name}"{"" if declared.repeatable else ", repeatable=False"})',
                _fitted(f"def {name}(", arguments, _after(result), 4),
                indent(_docstring(declared.summary, fields), "    "),
            ]
        )

    def _argument(self, name: str, field: FieldInfo) -> str:
        shown = self._type(field.annotation, ACCEPTED)
        if field.is_required():
            return f"{name}: {shown}"
        if field.default_factory is not None:
            return f"{name}: {shown.removesuffix(' | None')} | None = None"
        default = json.dumps(field.default) if isinstance(field.default, str) else repr(field.default)
        line = f"{name}: {shown} = {default}"
        if len(line) + len(",") + 8 > WIDTH and get_origin(field.annotation) is Literal:
            shown = _fitted("Literal[", [json.dumps(each) for each in get_args(field.annotation)], "]", WIDTH)
            return f"{name}: {shown} = {default}"
        return line

    def _type(self, kind: Any, accepted: Mapping[Any, type] | None = None) -> str:
        """Write a type; of an argument, one that also stands for what is `accepted`."""
        origin, inner = get_origin(kind), get_args(kind)
        if origin is typing.Annotated:
            return self._type(inner[0], accepted)
        if origin in {typing.Union, UnionType}:
            return " | ".join(self._type(each, accepted) for each in inner)
        if origin is Literal and inner == (True,):
            return "bool"
        named = Any if kind is Any else Literal if origin is Literal else (accepted or {}).get(origin, origin or kind)
        if named is NoneType:
            return "None"
        name = getattr(named, "__name__", "") or str(named).removeprefix("typing.")
        if is_typeddict(named) and getattr(import_module(named.__module__), name) is not named:
            if name not in self.results:
                self.results[name] = self._result(named)
        elif getattr(named, "__module__", "") != "builtins":
            self._imported[named.__module__].add(name)
        if not inner:
            return name
        shown = [json.dumps(each) if origin is Literal else self._type(each, accepted) for each in inner]
        return f"{name}[{', '.join(shown)}]"

    def _result(self, kind: Any) -> str:
        self._imported["typing_extensions"].add("TypedDict")
        members = [f"{name}: {self._type(each)}" for name, each in kind.__annotations__.items()]
        for place, line in enumerate(members):
            if len(line) + 4 > WIDTH:
                before, _, inner = line.partition("[")
                members[place] = f"{before}[\n    {inner[:-1]}\n]"
        summary, *more = kind.__doc__.split("\n\n")
        lines = [line for each in more for line in ("", *wrap(each, WIDTH - 4))]
        lines = [f'"""{summary}', *lines, '"""'] if lines else [f'"""{summary}"""']
        return f"class {kind.__name__}(TypedDict):\n" + indent("\n".join([*lines, "", *members]), "    ") + "\n"


def _fitted(before: str, items: Sequence[str], after: str, width: int = 0) -> str:
    """Write items between brackets: in one line, if it fits behind so many columns, or one below the other."""
    line = f"{before}{', '.join(items)}{after}"
    if len(line) + width <= WIDTH:
        return line
    return f"{before}\n" + indent("".join(f"{item},\n" for item in items), "    ") + after


def _after(result: str) -> str:
    """Write what comes after the arguments: one alternative below the other, if a list's don't fit into a line."""
    line = f") -> {result}:"
    if len(line) + 4 <= WIDTH:
        return line
    alternatives = result.removeprefix("list[").removesuffix("]").split(" | ")
    return ") -> list[\n" + indent("\n| ".join(alternatives), "    ") + "\n]:"


def _docstring(summary: str, fields: Mapping[str, FieldInfo]) -> str:
    lines = wrap(f'"""{summary}', WIDTH - 8)
    described = {name: field for name, field in fields.items() if field.description != REPEATED.get(name)}
    if described:
        lines += ["", "Args:"]
        for name, field in described.items():
            lines += wrap(f"{name}: {field.description}", WIDTH - 12, initial_indent="    ", subsequent_indent=" " * 8)
        lines.append('"""')
    else:
        lines[-1] += '"""'
    return "\n".join(lines)
