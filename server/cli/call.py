"""`toolpack-server call`: runs functions one after the other in one session, in this process or on a server.

The rule: both send the same JSON-RPC requests.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from server.base.errors import CallError
from server.base.terminal import echo
from server.cli.local import memory_settings
from server.cli.look import check_text, label
from server.cli.options import packs_options, server_options
from server.cli.send import Send, local, remote
from server.rpc.caller import Caller
from server.wiring.service import Service

Step = tuple[str, dict[str, Any]]
"""The name of a function, and its arguments."""

FURTHER = "further steps"
SEPARATOR = "--"


class _Steps(click.Command):
    """A command whose arguments are several steps, with `--` between them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let click read the first step, which may have options, and keep the others."""
        steps: list[list[str]] = [[]]
        for word in args:
            if word == SEPARATOR:
                steps.append([])
            else:
                steps[-1].append(word)
        if [] in steps[1:]:
            raise click.UsageError(
                f"After each {SEPARATOR} comes a function: call send_money … {SEPARATOR} get_balance."
            )
        ctx.meta[FURTHER] = steps[1:]
        return super().parse_args(ctx, steps[0])


@click.command(cls=_Steps, options_metavar="[OPTIONS]")
@packs_options
@server_options("Server to call, like http://127.0.0.1:8000; default: call in this process.")
@click.option("--session", help="Session to call in; default: a new one, closed afterwards.")
@click.option(
    "--option", "options", multiple=True, metavar="TOOLPACK.NAME=VALUE", help="Option of the new session's toolpack."
)
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
    function: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a FUNCTION, and those after each `--`, and print each result as JSON.

    Values are JSON, else strings. The first function that fails ends the command. In this process its traceback is
    shown.
    """
    if session and not url:
        raise click.UsageError("--session needs --url: sessions are kept by a server.")
    if session and options:
        raise click.UsageError("--option needs a new session: omit --session.")
    steps = [_step([function, *arguments]), *map(_step, ctx.meta[FURTHER])]
    given = _options(options)
    details: list[str] = []
    send = remote(url, token) if url else _here(pack_dir, packs, details)
    try:
        asyncio.run(_run(send, session, given, steps))
    except CallError as error:
        echo(*("\n".join(details) or str(error)).split("\n"), err=True)  # details have the error, too
        sys.exit(1)


async def _run(send: Send, session: str | None, options: dict[str, dict[str, Any]], steps: list[Step]) -> None:
    session_id = session
    if session_id is None:
        session_id, steps = await _create(send, options, steps)
    try:
        for function, kwargs in steps:
            call = {"session_id": session_id, "function": function, "kwargs": kwargs}
            envelope = await send("run_function", call)
            if envelope["error"] is not None:
                raise CallError(envelope["error"])
            echo(*json.dumps(envelope["result"], indent=2, ensure_ascii=False).split("\n"))
    finally:
        if session is None:
            await send("close_session", {"session_id": session_id})


async def _create(send: Send, options: dict[str, dict[str, Any]], steps: list[Step]) -> tuple[str, list[Step]]:
    """Create a session of the toolpacks that the steps need, and get the steps by what functions are called there.

    If no toolpack has any of these functions, the session has the usual ones.
    """
    packs = await send("list_toolpacks", {})
    owned = [(_owner(packs, function, options), function, kwargs) for function, kwargs in steps]
    wanted = dict.fromkeys([*(owner for owner, _, _ in owned if owner), *options])
    created = await send("create_session", {"toolpacks": [*wanted] or None, "options": options})
    listed = (await send("list_functions", {"session_id": created["session_id"]}))["result"]
    called = {(each["toolpack"], name): each["name"] for each in listed for name in _spellings(each)}
    return created["session_id"], [(called.get((owner, name), name), kwargs) for owner, name, kwargs in owned]


def _spellings(function: dict[str, Any]) -> set[str]:
    """Get the function's name with its toolpack and without."""
    plain = function["name"].removeprefix(f"{function['toolpack']}.")
    return {plain, f"{function['toolpack']}.{plain}"}


def _owner(packs: list[dict[str, Any]], function: str, options: dict[str, dict[str, Any]]) -> str | None:
    """Find the toolpack that has a function; one that gets options comes first, and one that is opt-in last."""
    owners = [pack for pack in packs if function.removeprefix(f"{pack['name']}.") in pack["functions"]]
    for chosen in ([p for p in owners if p["name"] in options], [p for p in owners if not p["opt_in"]], owners):
        if len(chosen) > 1:
            names = " or ".join(f"{pack['name']}.{function}" for pack in chosen)
            raise click.UsageError(f"{len(chosen)} toolpacks have a function {function!r}: call {names}.")
        if chosen:
            return str(chosen[0]["name"])
    return None


def _here(pack_dir: tuple[Path, ...], packs: str | None, details: list[str]) -> Send:
    def note_details(_request: object, outcome: Any) -> None:
        failure = outcome.failure
        if failure and failure.traceback:
            details.append(failure.traceback)
        elif failure and failure.similar:
            details.append(f"{failure.text} Did you mean {' or '.join(failure.similar)}?")

    settings = memory_settings(pack_dir, packs, compare_read_only=True)
    return local(Service(settings, on_call=note_details), Caller())


def _step(words: list[str]) -> Step:
    check_text(words[0])
    return words[0], dict(map(_pair, words[1:]))


def _options(texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Get the options by toolpack; a toolpack's name may have dots, an option's hasn't."""
    options: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, value = _pair(text)
        toolpack, dot, option = name.rpartition(".")
        if not dot:
            raise click.UsageError(f"{text!r} is not of the form toolpack.name=value.")
        options.setdefault(toolpack, {})[option] = value
    return options


def _pair(text: str) -> tuple[str, Any]:
    name, value = label(text)
    try:
        return name, json.loads(value, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return name, value


def _no_json(text: str) -> Any:
    """Refuse NaN and infinities, which Python reads though they aren't JSON."""
    raise ValueError(text)
