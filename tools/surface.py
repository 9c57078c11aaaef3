"""A description of everything that users can rely on, and a check for changes that break it.

    python -m tools.surface                   compare with the last release; status 1: a break isn't in CHANGELOG.md
    python -m tools.surface --release 0.2.0   store today's description as that of the release

A description lists *things*, such as a method, a parameter or a setting, each with a name. A thing has properties that
must stay (`gives`), requirements that must not grow (`asks`), and limits that must not become narrower. So a removal is
a break, and an addition isn't. schemas/released.json stores the description of the last release.
"""

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
import docstring_parser
from prometheus_client.parser import text_string_to_metric_families
from pydantic import TypeAdapter
from typing_extensions import Unpack, is_typeddict

from toolpack_server.base.settings import FeatureSettings, Settings
from toolpack_server.cli import cli
from toolpack_server.execution.failure import Failure
from toolpack_server.features.protocols.mcp.messages import CALL_ID_KEY, VERSIONS
from toolpack_server.features.protocols.mcp.protocol import Mcp
from toolpack_server.features.replay.bundle_format import FORMAT as BUNDLES
from toolpack_server.features.stores.postgres.statements import MIGRATIONS as POSTGRES
from toolpack_server.features.stores.redis.connection import SCHEMA as REDIS
from toolpack_server.features.stores.sqlite.file import VERSION as SQLITE
from toolpack_server.observability.exposition import exposition
from toolpack_server.observability.metrics import Metrics
from toolpack_server.packs.catalog import Catalog
from toolpack_server.rpc.codes import CODES, FAILURE_CODES
from toolpack_server.rpc.method import agents_methods
from toolpack_server.sessions.call_observer import OK, REFUSED
from toolpack_server.snapshots.seal import FORMAT as SNAPSHOTS
from toolpack_server.web.app import create_app
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import Service, all_methods, openrpc

ROOT = Path(__file__).parents[1]
RELEASED = ROOT / "schemas" / "released.json"
CHANGELOG = ROOT / "CHANGELOG.md"
PROJECT = ROOT / "pyproject.toml"
PACKAGES = sorted(ROOT.glob("packages/*/pyproject.toml"))
HEADING = "### Breaking"

MODULES = (
    "toolpack_server.client",
    "toolpack_server.training",
    "toolpack_server.remote_runtime",
    "toolpack_server.features.api.core",
    "toolpack_server.features.api.commands",
    "toolpack_server.features.api.http",
    "toolpack_server.features.api.stores",
    "toolpack_server.features.api.volumes",
    "toolpack_server.testing",
    "toolpack_server",
    "toolpack_server.environments",
    "toolpack_server.perturbations",
)
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


@dataclass
class Thing:
    """One thing that users can rely on.

    Attributes:
        gives: Properties that must stay.
        asks: Requirements for users: what they must do or expect. A release mustn't add any.
        limits: The maximum (`max…`) or minimum (`min…`) of accepted values.
    """

    gives: set[str] = field(default_factory=set)
    asks: set[str] = field(default_factory=set)
    limits: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        description = {
            "gives": sorted(self.gives),
            "asks": sorted(self.asks),
            "limits": dict(sorted(self.limits.items())),
        }
        return {name: value for name, value in description.items() if value}


class Surface(dict[str, Thing]):
    """Things by name. The first access to a missing thing creates it."""

    def __missing__(self, name: str) -> Thing:
        self[name] = Thing()
        return self[name]

    @classmethod
    def read(cls, released: Mapping[str, Mapping[str, Any]]) -> "Surface":
        return cls(
            {
                name: Thing({*thing.get("gives", ())}, {*thing.get("asks", ())}, {**thing.get("limits", {})})
                for name, thing in released.items()
            }
        )

    def as_json(self) -> dict[str, Any]:
        return {name: self[name].as_json() for name in sorted(self)}

    # The protocol

    def add_methods(self, document: Mapping[str, Any]) -> None:
        """Describe the methods and schemas of an OpenRPC document."""
        schemas = document["components"]["schemas"]
        inputs, outputs = set[str](), set[str]()
        for method in document["methods"]:
            name = method["name"]
            for index, parameter in enumerate(method["params"], 1):
                self[f"{name}({parameter['name']})"].gives.add(f"by position, at {index}")
                self.add_schema(f"{name}({parameter['name']})", parameter["schema"], is_input=True)
                if parameter["required"]:
                    self[name].asks.add(f"needs {parameter['name']}")
            result = method["result"]["schema"]
            if "properties" in result and "title" in result:  # a result with a name, which other results may refer to
                self.add_schema(result["title"], result, is_input=False)
                _collect(result, schemas, outputs)
                result = {"$ref": result["title"]}
            self.add_schema(f"{name}.result", result, is_input=False)
            _collect(method["params"], schemas, inputs)
            _collect(result, schemas, outputs)
        for name in sorted(inputs):
            self.add_schema(name, schemas[name], is_input=True)
        for name in sorted(outputs):
            self.add_schema(name, schemas[name], is_input=False)

    def add_addresses(self) -> None:
        """Describe the methods at agents' addresses."""
        for method in agents_methods(all_methods(load_features())):
            name = f"{method.declared.name} at /agents/<key>"
            self.add_schema(f"{name}", method.model_json_schema(), is_input=True)
            result = TypeAdapter(method.declared.result).json_schema(mode="serialization")
            self.add_schema(f"{name}.result", result, is_input=False)

    def add_errors(self) -> None:
        for kind, code in CODES.items():
            self[str(code)].gives.add(f"type {kind.__name__}")
        for failure, code in FAILURE_CODES.items():
            self[str(code)].gives.add(f"failure {failure.value}")

    def add_paths(self) -> None:
        """Describe the HTTP paths, and MCP's names."""
        service = Service(Settings(store="memory:", tokens={"me": "12345678"}), Catalog({}), key=b"key")
        for route in create_app(service).routes:
            if not route.path.startswith("/console"):
                self[route.path].gives |= {f"method {method}" for method in route.methods or ()}
        mcp = Mcp(service)
        self["MCP"].gives |= {f"version {version}" for version in VERSIONS} | {f"_meta {CALL_ID_KEY}"}
        self["MCP"].gives |= {f"method {method}" for method in {**mcp._legacy, **mcp._modern}}

    # Operation

    def add_settings(self, settings: type[Settings] | type[FeatureSettings]) -> None:
        schemas = settings.model_json_schema()["properties"]
        for variable, name in settings.variables().items():
            self.add_schema(variable, schemas[name], is_input=True)

    def add_metrics(self) -> None:
        outcomes = [OK, *Failure, REFUSED]
        families = [feature.metrics for feature in load_features()]
        metrics = Metrics([("bank", "get_balance")], outcomes, of_features=families)
        for outcome in outcomes:
            metrics.called("bank", "get_balance", outcome, 1)
        for family in (family for each in families for family in each):
            (metrics.count if family.counts else partial(metrics.measure, number=1))(family, value=family.values[0])
        for family in text_string_to_metric_families(exposition(metrics, 1).decode()):
            for sample in family.samples:
                fixed = {"outcome", "state", "why"} & {*sample.labels}
                self[sample.name].gives |= {f"is a {family.type}", *(f"label {label}" for label in sample.labels)}
                self[sample.name].gives |= {f'{label}="{sample.labels[label]}"' for label in fixed}

    def add_command(self, name: str = "toolpack-server", command: click.Command = cli) -> None:
        thing = self[name]
        context = click.Context(command)
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                self.add_command(f"{name} {each}", command.get_command(context, each))
        for parameter in command.params:
            names = [parameter.human_readable_name.upper()] if isinstance(parameter, click.Argument) else parameter.opts
            for each in [*names, *parameter.secondary_opts]:
                self._add_option(thing, self[f"{name} {each}"], each, parameter)

    @staticmethod
    def _add_option(thing: Thing, option: Thing, name: str, parameter: click.Parameter) -> None:
        if parameter.required:
            thing.asks.add(f"needs {name}")
        is_flag = getattr(parameter, "is_flag", False)
        option.gives.add("is a flag" if is_flag else "takes a value")
        if parameter.multiple or parameter.nargs != 1:
            option.gives.add("may be given several times")
        if isinstance(parameter.type, click.Choice):
            option.gives |= {f"may be {choice}" for choice in parameter.type.choices}
        if isinstance(parameter.default, (str, int, float)):
            option.gives.add(f"default {parameter.default!r}")

    def add_formats(self) -> None:
        numbers = {
            "SQLite stores": SQLITE,
            "Redis stores": REDIS.decode(),
            "Postgres stores": len(POSTGRES),
            "snapshots": SNAPSHOTS,
            "bundles": BUNDLES,
        }
        for name, number in numbers.items():
            self[f"format of {name}"].gives.add(f"is {number}")

    def add_package(self) -> None:
        project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
        versions = [each.rpartition(" ")[2] for each in project["classifiers"] if ":: Python :: 3." in each]
        self["Python"].gives |= {f"is {version}" for version in versions}
        for extra in project["optional-dependencies"].keys() - {"dev", "mcp-clients", "test"}:
            self[f"toolpack-server[{extra}]"]
        self["toolpack_session"].gives |= {f"comes from {each}" for each in project["entry-points"]["pytest11"]}

    # JSON Schemas

    def add_schema(self, name: str, schema: Any, *, is_input: bool) -> None:
        """Describe the values that a schema allows.

        Args:
            name: Name of the thing.
            schema: The JSON Schema.
            is_input: True for values that the server accepts, false for values that it returns.
        """
        thing = self[name]
        for branch in _branches(schema):
            if "$ref" in branch:
                thing.gives.add(f"may be {branch['$ref'].rpartition('/')[2]}")
                continue
            values = branch.get("enum", [branch["const"]] if "const" in branch else [])
            thing.gives |= {f"may be {json.dumps(value)}" for value in values}
            types = {*_types(branch)}
            if not values:
                (thing.gives if is_input else thing.asks).update(f"may be of type {each}" for each in types)
            if is_input:
                thing.limits |= _limits(branch)
                if "pattern" in branch:
                    thing.asks.add(f"must match {branch['pattern']}")
            if "object" in types:
                self._add_members(name, branch, is_input=is_input)
            if "items" in branch:
                self.add_schema(f"{name}[]", branch["items"], is_input=is_input)
        if is_input and "default" in schema:
            thing.gives.add(f"default {json.dumps(schema['default'])}")

    def _add_members(self, name: str, schema: Mapping[str, Any], *, is_input: bool) -> None:
        required = schema.get("required", ())
        if is_input:
            self[name].asks |= {f"needs {each}" for each in required}
        for member, its_schema in schema.get("properties", {}).items():
            self.add_schema(f"{name}.{member}", its_schema, is_input=is_input)
            if member in required and not is_input:
                self[f"{name}.{member}"].gives.add("always there")
        more = schema.get("additionalProperties", not schema.get("properties"))
        if isinstance(more, Mapping):
            self.add_schema(f"{name}.*", more, is_input=is_input)
        elif more and is_input:
            self[name].gives.add("any other members")

    # Python

    def add_objects(self, name: str, module: ModuleType) -> None:
        """Describe the exports of a module: its `__all__`, or the names that it defines."""
        own = [each for each, value in vars(module).items() if getattr(value, "__module__", None) == name]
        for each in getattr(module, "__all__", own):
            if not each.startswith("_"):
                self._add_object(f"{name}.{each}", getattr(module, each))

    def _add_object(self, name: str, value: Any) -> None:
        if is_typeddict(value):
            for member in value.__annotations__:
                self[f"{name}.{member}"].gives |= {"always there"} if member in value.__required_keys__ else set()
        elif inspect.isclass(value):
            self._add_class(name, value)
        elif callable(value) and get_origin(value) is None:  # a parametrised type is callable, but has an origin
            self._add_callable(name, value)
        else:
            self[name].gives.add(f"is {value!r}" if isinstance(value, (str, int, float)) else "is there")

    def _add_class(self, name: str, cls: type) -> None:
        public = [base for base in cls.__mro__[1:-1] if base.__module__ in {"builtins", *MODULES, "pydantic.main"}]
        self[name].gives |= {f"is a {base.__name__}" for base in public if not base.__name__.startswith("_")}
        self._add_callable(name, cls)
        described = [base.__doc__ or "" for base in cls.__mro__ if base.__module__.startswith("toolpack_server")]
        documented = [each for text in described for each in docstring_parser.parse(text).params]
        attributes = {each.arg_name for each in documented if each.args[0] == "attribute"}
        attributes |= {*getattr(cls, "model_fields", ()), *getattr(cls, "__dataclass_fields__", ())}
        for attribute in attributes:
            if not attribute.startswith("_"):
                self[f"{name}.{attribute}"]
        for member in dir(cls):
            owner = next((base for base in cls.__mro__ if member in vars(base)), object)
            if member.startswith("_") or not owner.__module__.startswith("toolpack_server"):
                continue
            value = inspect.getattr_static(cls, member)
            if isinstance(value, (staticmethod, classmethod)) or inspect.isfunction(value):
                self._add_callable(f"{name}.{member}", getattr(cls, member), bound=inspect.isfunction(value))
            elif isinstance(value, property) or attributes:
                self[f"{name}.{member}"]

    def _add_callable(self, name: str, function: Any, *, bound: bool = False) -> None:
        thing = self[name]
        try:
            signature = inspect.signature(function)
        except ValueError:  # a class written in C has no signature
            return
        if inspect.iscoroutinefunction(function):
            thing.gives.add("is awaited")
        if not inspect.isclass(function) and signature.return_annotation is not inspect.Signature.empty:
            thing.gives.add(f"returns {_annotation(signature.return_annotation)}")
        for index, parameter in enumerate([*signature.parameters.values()][bound:], 1):
            if parameter.kind is parameter.VAR_KEYWORD and get_origin(parameter.annotation) is Unpack:
                for member in get_args(parameter.annotation)[0].__annotations__:
                    self[f"{name}({member})"].gives.add("by name")
            elif parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                thing.gives.add("any further arguments" + " by name" * (parameter.kind is parameter.VAR_KEYWORD))
            else:
                self._add_parameter(thing, self[f"{name}({parameter.name})"], parameter, index)

    @staticmethod
    def _add_parameter(thing: Thing, option: Thing, parameter: inspect.Parameter, index: int) -> None:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            option.gives.add(f"by position, at {index}")
        if parameter.kind is not parameter.POSITIONAL_ONLY:
            option.gives.add("by name")
        if parameter.default is parameter.empty:
            thing.asks.add(f"needs {parameter.name}")
        else:
            option.gives.add(f"default {_value(parameter.default)}")


def _branches(schema: Any) -> Iterator[Mapping[str, Any]]:
    choices = schema.get("anyOf", schema.get("oneOf")) if isinstance(schema, Mapping) else None
    for choice in choices or ():
        yield from _branches(choice)
    if not choices:
        yield schema if isinstance(schema, Mapping) else {}


def _types(schema: Mapping[str, Any]) -> Iterable[str]:
    declared = schema.get("type", TYPES)
    types = [declared] if isinstance(declared, str) else declared
    return [*types, "integer"] if "number" in types else types


def _limits(schema: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in schema.items() if re.match(r"(exclusive)?(max|min)", name, re.IGNORECASE)}


def _annotation(annotation: Any) -> str:
    """Return a text for a type, the same on every Python. It has no names of modules, because a class may move."""
    if isinstance(annotation, list):
        return f"[{', '.join(map(_annotation, annotation))}]"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    texts = [*map(_annotation, arguments)]
    if origin in {Union, UnionType}:
        return " | ".join(texts)
    if annotation is NoneType:
        return "None"
    name = annotation if isinstance(annotation, str) else getattr(origin or annotation, "__name__", str(annotation))
    return f"{name}[{', '.join(texts)}]" if texts else name


def _value(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, type(None), tuple)):
        return repr(value)
    return getattr(value, "__name__", None) or f"a {type(value).__name__}"


def _collect(value: Any, schemas: Mapping[str, Any], names: set[str]) -> None:
    """Add the names of all schemas to which a value refers, directly or through other schemas, to `names`."""
    if isinstance(value, dict):
        name = str(value.get("$ref", "")).rpartition("/")[2]
        if name in schemas and name not in names:
            names.add(name)
            _collect(schemas[name], schemas, names)
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _collect(each, schemas, names)


def describe() -> Surface:
    """Return the description of the current code."""
    surface = Surface()
    surface.add_methods(openrpc(all_methods(load_features()), load_features()))
    surface.add_addresses()
    surface.add_errors()
    surface.add_paths()
    for settings in (Settings, *(each.settings for each in load_features() if each.settings)):
        surface.add_settings(settings)
    surface.add_metrics()
    surface.add_command()
    surface.add_formats()
    surface.add_package()
    for module in MODULES:
        surface.add_objects(module, import_module(module))
    return surface


def breaks(before: Surface, now: Surface) -> Iterator[tuple[str, str]]:
    """Yield each break: the name of the thing, and the broken property."""
    removed = {name for name in before if name not in now}
    for name, thing in before.items():
        if name in removed:
            if not any(
                name != other and name.startswith((f"{other}.", f"{other}(", f"{other}[", f"{other} "))
                for other in removed
            ):
                yield name, "is gone"
            continue
        option = now[name]
        yield from ((name, f"no longer: {each}") for each in sorted(thing.gives - option.gives))
        yield from ((name, f"now: {each}") for each in sorted(option.asks - thing.asks))
        for limit, value in option.limits.items():
            old = thing.limits.get(limit)
            if old is None or (value > old if "min" in limit.lower() else value < old):
                yield name, f"now: {limit} {value}"


def breaks_in_changelog(changelog: str) -> list[str]:
    """Return the entries under `### Breaking` in the section of unreleased changes."""
    unreleased = re.split(r"^## ", changelog, flags=re.MULTILINE)[1]
    _, _, section = unreleased.partition(f"{HEADING}\n")
    section = re.split(r"^#", section, flags=re.MULTILINE)[0]
    return [" ".join(entry.split()) for entry in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


@click.command()
@click.option("--release", metavar="VERSION", help="Write this version into the files, and store today's description.")
def main(release: str | None) -> None:
    """Compare today's description with the last release's."""
    released = json.loads(RELEASED.read_text(encoding="utf-8"))
    now = describe()
    changelog = CHANGELOG.read_text(encoding="utf-8")
    entries = breaks_in_changelog(changelog)
    broken = [*breaks(Surface.read(released["surface"]), now)]
    # An entry may name the thing, or its whole module as `module.*`.
    names = {name: (f"`{name}`", f"`{name.rpartition('.')[0]}.*`") for name, _ in broken}
    missing = [
        (name, what) for name, what in broken if not any(each in entry for entry in entries for each in names[name])
    ]
    if missing and release != released["version"]:  # a repeated release replaces its own description
        for name, what in missing:
            click.echo(f"`{name}` {what}")
        click.echo(
            f"CHANGELOG.md lacks {pluralize(len(missing), 'break')} since {released['version']}: undo the change, or "
            f"write an entry with the name as it stands above, under {HEADING!r} in the section `Unreleased`."
        )
        sys.exit(1)
    if release:
        make_release(release, changelog, now)
        click.echo(f"{pluralize(len(now), 'thing')}, stored as the surface of {release}.")
        return
    click.echo(f"{pluralize(len(now), 'thing')}, {pluralize(len(broken), 'break')} since {released['version']}.")


def pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def make_release(version: str, changelog: str, surface: Surface) -> None:
    """Write the version into CHANGELOG.md and all pyproject.toml, and store the surface of this release."""
    changelog = re.sub(rf"^## {re.escape(version)}\b.*\n+", "", changelog, flags=re.MULTILINE)
    CHANGELOG.write_text(changelog.replace("## Unreleased\n", f"## Unreleased\n\n## {version}\n", 1), encoding="utf-8")
    for project in (PROJECT, *PACKAGES):
        text = re.sub(
            r'^version = ".*"$', f'version = "{version}"', project.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        text = re.sub(r'"toolpack-server==.*?"', f'"toolpack-server=={version}"', text)
        project.write_text(text, encoding="utf-8")
    write_released(version, surface)


def write_released(version: str, surface: Surface) -> None:
    """Write schemas/released.json, with one line per thing."""
    things = ",\n".join(f"{json.dumps(name)}: {json.dumps(thing)}" for name, thing in surface.as_json().items())
    RELEASED.write_text(f'{{\n"version": {json.dumps(version)},\n"surface": {{\n{things}\n}}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
