"""Compare a port with its original: make the same random calls on both until they differ.

`python examples/compare_port.py http://127.0.0.1:8000 notes _notebook:Notebook --path packs` plays sessions of the
toolpack `notes` as an agent does, and makes the same calls on instances of the class `Notebook`. The original is a
callable that returns an object. The object has a method for each function, with the same name. After each call, the
results (as JSON) or the classes of the exceptions must be equal. At the end of a session, each field of the environment
must equal the object's attribute of the same name, if there is one with a JSON form. At the first difference, the
program prints it with all calls before it, and exits with status 1.
"""

import argparse
import asyncio
import inspect
import random
import sys
from pkgutil import resolve_name
from typing import Any

from pydantic_core import to_jsonable_python

from toolpack_server import AgentClient, Client

WORDS = ["", "a", "inbox", "2026-03-01", "Buy milk: 1 l, and 6 eggs"]
MISSING = object()


def random_value(schema: dict[str, Any], known_values: list[Any], draw: random.Random) -> Any:
    """Return a random value that fits a schema, often a value that has occurred before, such as the id of an object."""
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "anyOf" in schema:
        return random_value(draw.choice(schema["anyOf"]), known_values, draw)
    kind = schema.get("type", "string")
    if kind == "array":
        return [random_value(schema.get("items", {}), known_values, draw) for _ in range(draw.randrange(3))]
    if kind == "object":
        return {key: random_value(item, known_values, draw) for key, item in schema.get("properties", {}).items()}
    if kind == "boolean":
        return draw.choice((True, False))
    if kind in ("integer", "number"):
        minimum = schema.get("minimum", schema.get("exclusiveMinimum", -1))
        return draw.choice([*(item for item in known_values if type(item) is int), minimum + draw.randrange(5)])
    return None if kind == "null" else draw.choice([*(item for item in known_values if isinstance(item, str)), *WORDS])


def random_arguments(function: dict[str, Any], known_values: list[Any], draw: random.Random) -> dict[str, Any]:
    """Return random arguments of a function: all required parameters, and some of the others."""
    parameters = function["parameters"]
    required = parameters.get("required", ())
    return {
        name: random_value(schema, known_values, draw)
        for name, schema in parameters["properties"].items()
        if name in required or draw.choice((True, False))
    }


def leaves(value: Any) -> list[Any]:
    """Return all values inside of a JSON value that aren't objects or arrays."""
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if members is None else [leaf for member in members for leaf in leaves(member)]


def json_of(value: Any) -> Any:
    """Return a value as JSON, or `MISSING` if it has no JSON form."""
    try:
        return to_jsonable_python(value)
    except ValueError:  # an object of another class, or a circular reference
        return MISSING


def call_original(original: Any, name: str, kwargs: dict[str, Any]) -> tuple[Any, str | None]:
    """Call a method of the original. Return its result as JSON, or the name of its exception's class."""
    try:
        result = getattr(original, name)(**kwargs)
        return to_jsonable_python(asyncio.run(result) if inspect.iscoroutine(result) else result, fallback=vars), None
    except Exception as error:  # noqa: BLE001 - the original may raise anything
        return None, type(error).__name__


def play(client: Client, url: str, toolpack: str, original: Any, calls: int, draw: random.Random) -> str | None:
    """Play one session. Return the first difference, or None."""
    session = client.create_session([toolpack])
    log, known_values = [], list[Any]()
    with AgentClient(url + session["agent_path"]) as agent:
        functions = agent.list_functions()["result"]
        for _ in range(calls):
            function = draw.choice(functions)
            name, kwargs = function["name"], random_arguments(function, known_values, draw)
            log.append(f"  {name}(**{kwargs})")
            envelope = agent.run_function(name, kwargs)
            error = envelope["error"] and envelope["error"].partition(":")[0]
            actual = (None, error) if error else (envelope["result"], None)
            if actual[1] == "ValidationError":
                log.pop()  # the port checks arguments by its schema, which the original doesn't have
                continue
            expected = call_original(original, name, kwargs)
            if actual != expected:
                return "\n".join([*log, f"original: {expected}", f"port:     {actual}"])
            known_values += leaves(actual[0])[:20] + leaves(kwargs)
    fields = client.get_environment(session["session_id"])[toolpack]
    client.close_session(session["session_id"])
    for name, field in fields.items():
        attribute = json_of(getattr(original, name, MISSING))
        if attribute is not MISSING and attribute != field:
            return "\n".join([*log, f"original.{name}: {attribute}", f"port:     {field}"])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the same random calls on a port and on its original.")
    parser.add_argument("url", help="URL of the server")
    parser.add_argument("toolpack", help="name of the port's toolpack")
    parser.add_argument("original", help="callable that creates the original: module:name")
    parser.add_argument("--path", default=".", help="folder with the original's module")
    parser.add_argument("--sessions", type=int, default=20, help="number of sessions to play")
    parser.add_argument("--calls", type=int, default=30, help="number of calls in each session")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random calls")
    args = parser.parse_args()
    sys.path.insert(0, args.path)
    create_original, draw = resolve_name(args.original), random.Random(args.seed)  # noqa: S311 - no secrets
    with Client(args.url) as client:
        for number in range(args.sessions):
            difference = play(client, args.url, args.toolpack, create_original(), args.calls, draw)
            if difference:
                print(f"Session {number} differs:\n{difference}")
                return 1
    print(f"{args.sessions} sessions of {args.calls} calls: no difference.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
