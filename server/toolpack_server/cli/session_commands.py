"""The commands `toolpack-server session list`, `env`, `trace` and `diff`, which show sessions of a server or a store.

On a terminal they print text for people, elsewhere JSON.
"""

import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

import click

from toolpack_server.base.terminal import echo, printable
from toolpack_server.cli.local import look_at, look_options
from toolpack_server.cli.options import packs_options
from toolpack_server.cli.requests import Send
from toolpack_server.protocol.results import Session
from toolpack_server.sessions.identity import DIGITS
from toolpack_server.sessions.record_kinds import short

PAGE_SIZE = 1000
FORMS = "On a terminal the output is for people, elsewhere (in a pipe or a file) it is JSON."


@click.command("list", epilog=FORMS)
@look_options
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only sessions with this label.")
@click.option("--parent", metavar="SESSION", help="Only forks of this session.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number.")
def list_sessions(labels: tuple[str, ...], parent: str | None, limit: int, **where: Any) -> None:
    """List sessions, the newest first."""

    async def look(send: Send) -> None:
        parent_id = await whole_id(send, parent) if parent else None
        params: dict[str, Any] = {"labels": dict(map(label, labels)), "parent": parent_id, "order": "-created"}
        sessions: list[Any] = []
        while len(sessions) < limit:
            after = sessions[-1]["session_id"] if sessions else ""
            params |= {"after": after, "limit": min(limit, PAGE_SIZE)}
            page = await send("list_sessions", params, shape=list[Session])
            sessions += page
            if not page:
                break
        show(sessions[:limit], _sessions_text)

    look_at(look, **where)


@click.command(epilog=FORMS)
@look_options
@packs_options
@click.option("--version", type=int, help="The version.  [default: the current one]")
@click.option("--pointer", default="", help="JSON Pointer to the part to show.  [default: all]")
@click.argument("session")
def env(session: str, version: int | None, pointer: str, **where: Any) -> None:
    """Show the environments of a SESSION; the beginning of its id is enough."""

    async def look(send: Send) -> None:
        params = {"session_id": await whole_id(send, session), "version": version, "pointer": pointer}
        show(await send("get_environment", params), _json_text)

    look_at(look, **where)


@click.command(epilog=FORMS)
@look_options
@click.option("--path", is_flag=True, help="Only the current history, including records of parent sessions.")
@click.argument("session")
def trace(session: str, path: bool, **where: Any) -> None:
    """Show the calls and resets of a SESSION; the beginning of its id is enough."""

    async def look(send: Send) -> None:
        show(await whole_trace(send, await whole_id(send, session), path=path), _trace_text)

    look_at(look, **where)


@click.command(epilog=FORMS)
@look_options
@packs_options
@click.option("--from-version", type=int, help="Version of the first.  [default: 0; with OTHER the current one]")
@click.option("--to-version", type=int, help="Version of the second.  [default: the current one]")
@click.argument("session")
@click.argument("other", required=False)
def diff(session: str, other: str | None, from_version: int | None, to_version: int | None, **where: Any) -> None:
    """Show the changes in a SESSION since its start, or its differences from OTHER."""

    async def look(send: Send) -> None:
        params = {
            "session_id": await whole_id(send, session),
            "from_version": from_version,
            "to_version": to_version,
            "to_session_id": await whole_id(send, other) if other else None,
        }
        show(await send("diff_environment", params), _diff_text)

    look_at(look, **where)


# Requests


async def whole_id(send: Send, beginning: str) -> str:
    """Return the only session id with this prefix. A whole id is returned unchanged.

    Raises:
        ClickException: No session's id, or several, begin with the prefix.
    """
    if len(beginning) >= DIGITS:
        return beginning
    # Sessions are sorted by id, so ids with this prefix come after it. Two ids show whether the prefix is unique.
    sessions = await send("list_sessions", {"labels": {}, "after": beginning, "limit": 2}, shape=list[Session])
    ids = [session["session_id"] for session in sessions if session["session_id"].startswith(beginning)]
    if len(ids) != 1:
        raise click.ClickException(f"{'Several' if ids else 'No'} sessions' ids begin with {beginning!r}.")
    return str(ids[0])


async def whole_trace(send: Send, session_id: str, *, path: bool) -> list[Any]:
    """Return all records of a session, or with `path` only its history."""
    records: list[Any] = []
    params = {"session_id": session_id, "limit": PAGE_SIZE, "path": path}
    while page := await send("get_trace", {**params, "after": len(records) - 1}):
        records += page
    return records


def check_text(text: str) -> None:
    """Raise `UsageError` if an argument isn't UTF-8, because JSON can't contain it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{text!r} isn't UTF-8: give it as text.") from None


def label(text: str) -> tuple[str, str]:
    """Return the name and the value of an argument `name=value`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not of the form name=value.")
    check_text(text)
    return name, value


# Output


def show(value: Any, text: Callable[[Any], str]) -> None:
    """Print a value, formatted by `text` on a terminal and as JSON elsewhere."""
    echo(*(text(value) if sys.stdout.isatty() else _json_text(value)).split("\n"))


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _sessions_text(sessions: list[Any]) -> str:
    """Return a table of sessions, with columns as wide as their longest cell."""
    if not sessions:
        return "No sessions."
    rows: list[tuple[str, ...]] = [("SESSION", "VERSION", "CREATED", "TOOLPACKS", "")]
    for session in sessions:
        parent = session.get("parent")
        origin = f"fork of {parent['session_id'][:8]}, version {parent['version']}" if parent else ""
        labels = [f"{name}={value}" for name, value in session["labels"].items()]
        remarks = ", ".join(filter(None, [*labels, origin]))
        created, packs = session["created_at"][:19].replace("T", " "), ",".join(session["toolpacks"])
        row = session["session_id"], str(session["version"]), created, packs, remarks
        rows.append(tuple(map(printable, row)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _trace_text(records: list[Any]) -> str:
    """Return one line per record: its index, or its position in the history, and the text of its kind of record."""
    from toolpack_server.wiring.installed import load_features  # noqa: PLC0415 - imports the whole server
    from toolpack_server.wiring.service import all_record_kinds  # noqa: PLC0415

    kinds, width = all_record_kinds(load_features()), _width()
    lines = [f"{each.get('path_index', each['index']):>4}  {kinds[each['kind']].text(each, width)}" for each in records]
    return "\n".join(lines) or "No calls."


def _diff_text(patch: list[Any]) -> str:
    """Return one line per step of a JSON Patch, with a sign in place of the step's name."""
    signs = {"add": "+", "remove": "-", "replace": "~"}
    lines = []
    for step in patch:
        origin = f" from {step['from']}" if "from" in step else ""
        value = f": {short(step['value'], _width())}" if "value" in step else ""
        lines.append(printable(f"{signs.get(step['op'], step['op'])} {step['path'] or '/'}{origin}{value}"))
    return "\n".join(lines) or "No differences."


def _width() -> int:
    """Return the maximum length of a shown value in characters: about two lines."""
    return 2 * shutil.get_terminal_size().columns
