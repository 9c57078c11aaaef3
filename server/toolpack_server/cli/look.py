"""`toolpack-server session list`, `env`, `trace` and `diff`: look at sessions, on a server or in its store.

They print for people on a terminal, and JSON elsewhere. A store that a running server uses is left alone:
that server can be asked with `--url`.
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
from toolpack_server.cli.send import Send
from toolpack_server.protocol.results import Session
from toolpack_server.sessions.identity import DIGITS
from toolpack_server.sessions.record_kinds import short

MOST_AT_ONCE = 1000
FORMS = "On a terminal the output is for people, elsewhere (in a pipe or a file) it is JSON."


@click.command("list", epilog=FORMS)
@look_options
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only sessions with this label.")
@click.option("--parent", metavar="SESSION", help="Only forks of this session.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many, at most.")
def list_sessions(labels: tuple[str, ...], parent: str | None, limit: int, **where: Any) -> None:
    """List sessions, the newest first."""
    wanted = dict(map(label, labels))

    async def look(send: Send) -> None:
        within = await whole_id(send, parent) if parent else None
        found: list[Any] = []
        while len(found) < limit:
            page = {"labels": wanted, "after": found[-1]["session_id"] if found else "", "parent": within}
            asked = {**page, "order": "-created", "limit": min(limit, MOST_AT_ONCE)}
            more = await send("list_sessions", asked, shape=list[Session])
            found += more
            if not more:
                break
        show(found[:limit], _sessions_text)

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
        asked = {"session_id": await whole_id(send, session), "version": version, "pointer": pointer}
        show(await send("get_environment", asked), _json_text)

    look_at(look, **where)


@click.command(epilog=FORMS)
@look_options
@click.option("--path", is_flag=True, help="Only what led to the current version, also in the sessions it came from.")
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
    """Show what has changed in a SESSION since its start, or in what OTHER differs from it."""

    async def look(send: Send) -> None:
        asked = {
            "session_id": await whole_id(send, session),
            "from_version": from_version,
            "to_version": to_version,
            "to_session_id": await whole_id(send, other) if other else None,
        }
        show(await send("diff_environment", asked), _diff_text)

    look_at(look, **where)


# What they look at


async def whole_id(send: Send, beginning: str) -> str:
    """Get the id of the session whose id begins so; a whole id is taken as it is."""
    if len(beginning) >= DIGITS:
        return beginning
    # An id comes after its own beginning.
    found = await send("list_sessions", {"labels": {}, "after": beginning, "limit": 2}, shape=list[Session])
    ids = [session["session_id"] for session in found if session["session_id"].startswith(beginning)]
    if len(ids) != 1:
        raise click.ClickException(f"{'Several' if ids else 'No'} sessions' ids begin with {beginning!r}.")
    return str(ids[0])


async def whole_trace(send: Send, session_id: str, *, path: bool) -> list[Any]:
    found: list[Any] = []
    asked = {"session_id": session_id, "limit": MOST_AT_ONCE, "path": path}
    while more := await send("get_trace", {**asked, "after": len(found) - 1}):
        found += more
    return found


def check_text(text: str) -> None:
    """Refuse what the shell has passed on and no JSON can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{text!r} isn't UTF-8: give it as text.") from None


def label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not of the form name=value.")
    check_text(text)
    return name, value


# What they print


def show(value: Any, text: Callable[[Any], str]) -> None:
    """Print a value: as this text on a terminal, else as JSON."""
    echo(*(text(value) if sys.stdout.isatty() else _json_text(value)).split("\n"))


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _sessions_text(found: list[Any]) -> str:
    if not found:
        return "No sessions."
    rows: list[tuple[str, ...]] = [("SESSION", "VERSION", "CREATED", "TOOLPACKS", "")]
    for session in found:
        parent = session.get("parent")
        origin = f"fork of {parent['session_id'][:8]}, version {parent['version']}" if parent else ""
        labels = [f"{name}={value}" for name, value in session["labels"].items()]
        more = ", ".join(filter(None, [*labels, origin]))
        created, packs = session["created_at"][:19].replace("T", " "), ",".join(session["toolpacks"])
        row = session["session_id"], str(session["version"]), created, packs, more
        rows.append(tuple(map(printable, row)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _trace_text(found: list[Any]) -> str:
    from toolpack_server.wiring.installed import load_features  # noqa: PLC0415 - imports the whole server
    from toolpack_server.wiring.service import all_record_kinds  # noqa: PLC0415

    kinds, width = all_record_kinds(load_features()), _width()
    lines = [f"{each.get('place', each['index']):>4}  {kinds[each['kind']].text(each, width)}" for each in found]
    return "\n".join(lines) or "No calls."


def _diff_text(patch: list[Any]) -> str:
    signs = {"add": "+", "remove": "-", "replace": "~"}
    lines = []
    for step in patch:
        origin = f" from {step['from']}" if "from" in step else ""
        value = f": {short(step['value'], _width())}" if "value" in step else ""
        lines.append(printable(f"{signs.get(step['op'], step['op'])} {step['path'] or '/'}{origin}{value}"))
    return "\n".join(lines) or "No differences."


def _width() -> int:
    """Get how much of a value is shown: about two lines."""
    return 2 * shutil.get_terminal_size().columns
