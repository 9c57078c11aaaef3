"""Compare a port with its original, at agents' addresses: make the same random calls on both until they differ.

`python examples/compare_port.py http://127.0.0.1:8000 notes _notebook:Notebook --path packs` plays sessions of the
toolpack `notes` beside instances of the class `Notebook`. The original is a callable that returns an object whose
methods have the functions' names. After each call, the results (as JSON) or the classes of the exceptions must be
equal. At the end, public attributes must equal the environment's fields of the same names. The first difference is
printed with the calls that led to it, and the exit status is then 1.
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


def value(schema: dict[str, Any], seen: list[Any], draw: random.Random) -> Any:
    """Return a random value that fits a schema. Values that have occurred before are preferred."""
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "anyOf" in schema:
        return value(draw.choice(schema["anyOf"]), seen, draw)
    kind = schema.get("type", "string")
    if kind == "array":
        return [value(schema.get("items", {}), seen, draw) for _ in range(draw.randrange(3))]
    if kind == "object":
        return {key: value(each, seen, draw) for key, each in schema.get("properties", {}).items()}
    if kind == "boolean":
        return draw.choice((True, False))
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1))
        return draw.choice([*(each for each in seen if type(each) is int), least + draw.randrange(5)])
    return None if kind == "null" else draw.choice([*(each for each in seen if isinstance(each, str)), *WORDS])


def arguments(function: dict[str, Any], seen: list[Any], draw: random.Random) -> dict[str, Any]:
    parameters = function["parameters"]
    needed = parameters.get("required", ())
    return {
        name: value(schema, seen, draw)
        for name, schema in parameters["properties"].items()
        if name in needed or draw.choice((True, False))
    }


def leaves(value: Any) -> list[Any]:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if members is None else [leaf for member in members for leaf in leaves(member)]


def answer(original: Any, name: str, kwargs: dict[str, Any]) -> tuple[Any, str | None]:
    """Call a method of the original. Return its result as JSON, or the name of its exception's class."""
    try:
        result = getattr(original, name)(**kwargs)
        return to_jsonable_python(asyncio.run(result) if inspect.iscoroutine(result) else result, fallback=vars), None
    except Exception as error:  # noqa: BLE001 - the original may raise anything
        return None, type(error).__name__


def play(client: Client, url: str, toolpack: str, original: Any, calls: int, draw: random.Random) -> str | None:
    """Play one session. Return the first difference, or None."""
    session = client.create_session([toolpack])
    log, seen = [], list[Any]()
    with AgentClient(url + session["agent_path"]) as agent:
        functions = agent.list_functions()["result"]
        for _ in range(calls):
            function = draw.choice(functions)
            name, kwargs = function["name"], arguments(function, seen, draw)
            log.append(f"  {name}(**{kwargs})")
            envelope = agent.run_function(name, kwargs)
            error = envelope["error"] and envelope["error"].partition(":")[0]
            actual = (None, error) if error else (envelope["result"], None)
            if actual[1] == "ValidationError":
                log.pop()  # the port checks arguments by its schema, which the original doesn't have
                continue
            expected = answer(original, name, kwargs)
            if actual != expected:
                return "\n".join([*log, f"original: {expected}", f"port:     {actual}"])
            seen += leaves(actual[0])[:20] + leaves(kwargs)
    fields = client.get_environment(session["session_id"])[toolpack]
    client.close_session(session["session_id"])
    for name, field in fields.items():
        attribute = to_jsonable_python(getattr(original, name, MISSING), fallback=lambda _: MISSING)
        if MISSING not in leaves(attribute) and attribute != field:
            return "\n".join([*log, f"original.{name}: {attribute}", f"port:     {field}"])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a port with its original, at agents' addresses.")
    parser.add_argument("url")
    parser.add_argument("toolpack")
    parser.add_argument("original", help="callable that creates the original: module:name")
    parser.add_argument("--path", default=".", help="folder with the original's module")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.path.insert(0, args.path)
    make, draw = resolve_name(args.original), random.Random(args.seed)  # noqa: S311 - no secrets
    with Client(args.url) as client:
        for number in range(args.sessions):
            difference = play(client, args.url, args.toolpack, make(), args.calls, draw)
            if difference:
                print(f"Session {number} differs:\n{difference}")
                return 1
    print(f"{args.sessions} sessions of {args.calls} calls: no difference.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
