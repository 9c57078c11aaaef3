"""The command `toolpack-server call`, which runs functions in one session, in this process or on a server."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.errors import CallError
from toolpack_server.base.terminal import echo
from toolpack_server.cli.local import memory_settings
from toolpack_server.cli.options import packs_options, server_options
from toolpack_server.cli.requests import Send, local, remote
from toolpack_server.cli.session_commands import check_text, label
from toolpack_server.rpc.caller import Caller
from toolpack_server.wiring.service import Service

Step = tuple[str, dict[str, str]]
"""The name of a function, and its arguments as written on the command line."""

FURTHER = "further steps"  # key in click's context for the words of each step after the first
SEPARATOR = "--"


class _Steps(click.Command):
    """A command whose arguments are several steps, separated by `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the first step, which can include options, and store the other steps in the context."""
        steps: list[list[str]] = [[]]
        for word in args:
            if word == SEPARATOR:
                steps.append([])
            else:
                steps[-1].append(word)
        if [] in steps[1:]:
            raise click.UsageError(
                f"A function must follow each {SEPARATOR}, as in: call send_money … {SEPARATOR} get_balance."
            )
        ctx.meta[FURTHER] = steps[1:]
        return super().parse_args(ctx, steps[0])


@click.command(cls=_Steps, options_metavar="[OPTIONS]")
@packs_options
@server_options("Server to call, like http://127.0.0.1:8000.  [default: call in this process]")
@click.option("--session", help="Session to call in.  [default: a new one, closed afterwards]")
@click.option(
    "--option", "options", multiple=True, metavar="TOOLPACK.NAME=VALUE", help="Option of the new session's toolpack."
)
@click.option("--as-agent", is_flag=True, help="Call at the agent's address, with the agent's rights.")
@click.argument("function")
@click.argument("arguments", metavar="[NAME=VALUE]... [-- FUNCTION [NAME=VALUE]...]...", nargs=-1)
@click.pass_context
def call(
    ctx: click.Context,
    pack_dir: tuple[Path, ...],
    packs: str | None,
    url: str | None,
    token: str | None,
    session: str | None,
    options: tuple[str, ...],
    as_agent: bool,
    function: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a FUNCTION, and another one after each `--`, and print each result as JSON.

    A value is read as JSON, or else as a string. A parameter that takes only strings gets its value unchanged. The
    first function that fails ends the command; in this process its traceback is shown.
    """
    if session and not url:
        raise click.UsageError("--session needs --url, because a server has the session.")
    if session and options:
        raise click.UsageError("--option needs a new session: omit --session.")
    steps = [_step([function, *arguments]), *map(_step, ctx.meta[FURTHER])]
    pack_options = _options(options)
    details: list[str] = []
    send = remote(url, token) if url else _in_process(pack_dir, packs, details)
    try:
        asyncio.run(_run(send, session, pack_options, steps, as_agent=as_agent))
    except CallError as error:
        echo(*("\n".join(details) or str(error)).split("\n"), err=True)  # the details include the error message
        sys.exit(1)


async def _run(
    send: Send, session: str | None, options: dict[str, dict[str, str]], steps: list[Step], *, as_agent: bool
) -> None:
    """Run the steps in a session, or in a new one that is closed afterwards, and print the results.

    With `as_agent` the calls are sent to the agent's address, so rules for the agent's calls apply to them.

    Raises:
        CallError: A function failed. The steps after it don't run.
    """
    if session is None:
        session_id, listed, steps = await _create(send, options, steps)
    else:
        session_id, listed = session, (await send("list_functions", {"session_id": session}))["result"]
    schemas = {each["name"]: each["parameters"] for each in listed}
    try:
        agent_path = (await send("get_session", {"session_id": session_id}))["agent_path"] if as_agent else None
        for function, texts in steps:
            kwargs = values(texts, schemas.get(function, {}))
            call = {"function": function, "kwargs": kwargs}
            if agent_path is None:
                call["session_id"] = session_id
            envelope = await send("run_function", call, agent_path)
            if envelope["error"] is not None:
                raise CallError(envelope["error"])
            echo(*json.dumps(envelope["result"], indent=2, ensure_ascii=False).split("\n"))
    finally:
        if session is None:
            await send("close_session", {"session_id": session_id})


async def _create(
    send: Send, options: dict[str, dict[str, str]], steps: list[Step]
) -> tuple[str, list[dict[str, Any]], list[Step]]:
    """Create a session with the toolpacks that the steps need.

    Return the session's id, its functions, and the steps with the functions' names in this session. If no toolpack has
    any of the steps' functions, the session gets the default toolpacks.
    """
    packs = await send("list_toolpacks", {})
    owned_steps = [(_owner(packs, function, options), function, kwargs) for function, kwargs in steps]
    toolpacks = dict.fromkeys([*(owner for owner, _, _ in owned_steps if owner), *options])
    schemas = {pack["name"]: pack.get("options", {}) for pack in packs}
    parsed = {toolpack: values(texts, schemas.get(toolpack, {})) for toolpack, texts in options.items()}
    session = await send("create_session", {"toolpacks": [*toolpacks] or None, "options": parsed})
    listed = (await send("list_functions", {"session_id": session["session_id"]}))["result"]
    names = {(each["toolpack"], name): each["name"] for each in listed for name in _spellings(each)}
    renamed_steps = [(names.get((owner, name), name), kwargs) for owner, name, kwargs in owned_steps]
    return session["session_id"], listed, renamed_steps


def _spellings(function: dict[str, Any]) -> set[str]:
    """Return the function's name without and with its toolpack's name."""
    plain = function["name"].removeprefix(f"{function['toolpack']}.")
    return {plain, f"{function['toolpack']}.{plain}"}


def _owner(packs: list[dict[str, Any]], function: str, options: dict[str, dict[str, str]]) -> str | None:
    """Return the toolpack that has a function, or None. Toolpacks with options come first, opt-in toolpacks last.

    Raises:
        UsageError: Several toolpacks of the same rank have the function.
    """
    owners = [pack for pack in packs if function.removeprefix(f"{pack['name']}.") in pack["functions"]]
    for candidates in ([p for p in owners if p["name"] in options], [p for p in owners if not p["opt_in"]], owners):
        if len(candidates) > 1:
            names = " or ".join(f"{pack['name']}.{function}" for pack in candidates)
            raise click.UsageError(f"{len(candidates)} toolpacks have a function {function!r}: call {names}.")
        if candidates:
            return str(candidates[0]["name"])
    return None


def _in_process(pack_dir: tuple[Path, ...], packs: str | None, details: list[str]) -> Send:
    """Return a function that sends requests to a service in this process.

    If a call fails, its traceback or a suggestion of similar names is added to `details`.
    """

    def add_details(_request: object, outcome: Any) -> None:
        """Add the details of a failed call. The service calls this after each call."""
        failure = outcome.failure
        if failure and failure.traceback:
            details.append(failure.traceback)
        elif failure and failure.similar:
            details.append(f"{failure.text} Did you mean {' or '.join(failure.similar)}?")

    settings = memory_settings(pack_dir, packs, verify_read_only=True)
    return local(Service(settings, on_call=add_details), Caller())


def _step(words: list[str]) -> Step:
    check_text(words[0])
    return words[0], dict(map(label, words[1:]))


def _options(texts: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the options by toolpack. A toolpack's name can contain dots, but an option's name can't."""
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        name, value = label(text)
        toolpack, dot, option = name.rpartition(".")
        if not dot:
            raise click.UsageError(f"{text!r} is not of the form toolpack.name=value.")
        options.setdefault(toolpack, {})[option] = value
    return options


def values(texts: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parse arguments as JSON, except where the schema of their object allows only a string."""
    properties, definitions = schema.get("properties", {}), schema.get("$defs", {})
    return {name: _value(text, _types(properties.get(name, {}), definitions)) for name, text in texts.items()}


def _value(text: str, types: set[str]) -> Any:
    """Parse a value as JSON. Return the text itself if it isn't JSON, or if `types` allows only strings."""
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text
    return text if "string" in types and types.isdisjoint(_TYPES[type(value)]) else value


_TYPES = {
    str: {"string"},
    bool: {"boolean"},
    int: {"integer", "number"},
    float: {"number", "integer"},
    type(None): {"null"},
    list: {"array"},
    dict: {"object"},
}


def _types(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows, or an empty set if it names no type."""
    if "$ref" in schema:
        return _types(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions)
    if "type" in schema:
        return {schema["type"]} if isinstance(schema["type"], str) else {*schema["type"]}
    choices = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    types = set().union(*(_TYPES[type(choice)] for choice in choices))
    for inner in [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
        # A choice that names no type allows all types.
        types |= _types(inner, definitions) or set().union(*_TYPES.values())
    return types


def _reject_constant(text: str) -> Any:
    """Reject NaN and infinities, which Python accepts although they aren't JSON."""
    raise ValueError(text)
