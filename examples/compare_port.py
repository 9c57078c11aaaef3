"""Compare a port with its original, at agents' addresses: make the same random calls on both until they differ.

`python examples/compare_port.py http://127.0.0.1:8000 notes _notebook:Notebook --path packs` plays sessions of the
toolpack `notes` beside instances of the class `Notebook`. The original is anything that, when it is called, gives an
object whose methods have the functions' names. What must be equal: what each call returns, as JSON, and whether it
fails, with which exception; at the end also the public attributes that the environment shows under the same names.
The first difference is printed with the calls that led to it, and makes the exit status 1.
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
    """Draw a value that fits a schema, rather one that has occurred before."""
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


def leaves(found: Any) -> list[Any]:
    members = found.values() if isinstance(found, dict) else found if isinstance(found, list) else None
    return [found] if members is None else [leaf for member in members for leaf in leaves(member)]


def answer(original: Any, name: str, given: dict[str, Any]) -> tuple[Any, str | None]:
    """Call a method of the original, and get what it returns as JSON, or the class of its exception."""
    try:
        found = getattr(original, name)(**given)
        return to_jsonable_python(asyncio.run(found) if inspect.iscoroutine(found) else found, fallback=vars), None
    except Exception as error:  # noqa: BLE001 - whatever the original raises
        return None, type(error).__name__


def play(client: Client, url: str, toolpack: str, original: Any, calls: int, draw: random.Random) -> str | None:
    """Play one session; get what differs first."""
    session = client.create_session([toolpack])
    made, seen = [], list[Any]()
    with AgentClient(url + session["agent_path"]) as agent:
        functions = agent.list_functions()["result"]
        for _ in range(calls):
            function = draw.choice(functions)
            name, given = function["name"], arguments(function, seen, draw)
            made.append(f"  {name}(**{given})")
            envelope = agent.run_function(name, given)
            failed = envelope["error"] and envelope["error"].partition(":")[0]
            found = (None, failed) if failed else (envelope["result"], None)
            if found[1] == "ValidationError":
                made.pop()  # the port has a schema, which the original can't know
                continue
            wanted = answer(original, name, given)
            if found != wanted:
                return "\n".join([*made, f"original: {wanted}", f"port:     {found}"])
            seen += leaves(found[0])[:20] + leaves(given)
    shown = client.get_environment(session["session_id"])[toolpack]
    client.close_session(session["session_id"])
    for name, held in shown.items():
        own = to_jsonable_python(getattr(original, name, MISSING), fallback=lambda each: MISSING)
        if MISSING not in leaves(own) and own != held:
            return "\n".join([*made, f"original.{name}: {own}", f"port:     {held}"])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare a port with its original, at agents' addresses.")
    parser.add_argument("url")
    parser.add_argument("toolpack")
    parser.add_argument("original", help="what makes the original: module:name")
    parser.add_argument("--path", default=".", help="the folder with the original's module")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.path.insert(0, given.path)
    make, draw = resolve_name(given.original), random.Random(given.seed)  # noqa: S311 - no secrets
    with Client(given.url) as client:
        for number in range(given.sessions):
            differs = play(client, given.url, given.toolpack, make(), given.calls, draw)
            if differs:
                print(f"Session {number} differs:\n{differs}")
                return 1
    print(f"{given.sessions} sessions of {given.calls} calls: no difference.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
