"""`toolpack-server replay` and `session bundle`: run a session again, and write it into a file.

As in `look`: on a server, or in its store. The bundle of a stranger is run in memory, or on the server that
the user names, and nothing but its arguments is used.
"""

import asyncio
import base64
import contextlib
import sys
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.errors import RequestError
from toolpack_server.base.terminal import printable
from toolpack_server.cli.local import ask_in_memory, look_at, look_options
from toolpack_server.cli.options import packs_options
from toolpack_server.cli.progress import progress
from toolpack_server.cli.requests import Send
from toolpack_server.cli.session_commands import FORMS, show, whole_id
from toolpack_server.features.replay.bundle_format import read_line, sealed, unpack

LIMIT = 100_000
MOST_BYTES = 2**28  # of a bundle: `session bundle` takes no longer answer from any server
HEAD_BYTES = 2**26  # more than a request may have
LOOK_SECONDS = 0.3  # between looks at how far a replay is


@click.command(epilog=FORMS)
@look_options
@packs_options
@click.option("--limit", type=click.IntRange(1, LIMIT), default=LIMIT, help="How many records, at most.")
@click.argument("target", metavar="FILE|SESSION")
def replay(target: str, limit: int, **where: Any) -> None:
    """Run a session again, and show the first call that comes out differently.

    FILE is a bundle: without --url it is run here, in memory. SESSION may be the beginning of an id. The exit status is
    1 if there is a difference.
    """
    content = _content(Path(target))

    async def run(send: Send) -> None:
        if content is not None:
            asked = {"bundle": base64.b64encode(content).decode(), "mode": "replay", "limit": limit}
            labels, versions = _head(content)
            _tell(await _watched(send, send("import_bundle", asked), {"labels": labels}, min(versions, limit)))
        else:
            session = await send("get_session", {"session_id": await whole_id(send, target)})
            asked = {"session_id": session["session_id"], "limit": limit}
            forks = {"parent": session["session_id"]}
            _tell(await _watched(send, send("replay_session", asked), forks, min(session["version"], limit)))

    if content is not None and not where["url"]:
        ask_in_memory(run, where["pack_dir"], where["packs"])
    else:
        look_at(run, **where)


@click.command()
@look_options
@packs_options
@click.option("--ends", is_flag=True, help="Only the first and the current version, not all that are kept.")
@click.argument("session")
def bundle(session: str, ends: bool, **where: Any) -> None:
    """Write a SESSION to standard output, as a bundle; the beginning of its id is enough."""
    if sys.stdout.isatty():
        raise click.UsageError("A bundle isn't text for a terminal: write it into a file, with `> FILE`.")

    async def write(send: Send) -> None:
        session_id = await whole_id(send, session)
        exported = await send("export_bundle", {"session_id": session_id, "versions": "ends" if ends else "all"})
        sys.stdout.buffer.write(base64.b64decode(exported["bundle"]))

    look_at(write, **where)


def _content(path: Path) -> bytes | None:
    """Get what is in a file; None if there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise click.ClickException(f"{path} has more than {MOST_BYTES} bytes, which no bundle has.")
    return content


def _head(bundle: bytes) -> tuple[Mapping[str, str], int]:
    """Get a session's labels, and how many versions it has."""
    with contextlib.suppress(RequestError):  # the request says what is wrong with it
        lines = unpack(sealed(bundle, None), HEAD_BYTES, HEAD_BYTES, lambda _: None, blobs=False)
        head = read_line(next(lines)).head
        if head is not None:
            return head.labels, head.version
    return {}, 0


async def _watched(send: Send, replay: Awaitable[Any], among: Mapping[str, Any], versions: int) -> Any:
    """Wait for a replay, and show how many versions the new session has; it is the newest one `among` others."""
    newest = {**among, "order": "-created", "limit": 1}
    before, version = [each["session_id"] for each in await send("list_sessions", newest)], 0
    request = asyncio.ensure_future(replay)
    with progress("Replaying", versions) as go_on:
        while not (await asyncio.wait([request], timeout=LOOK_SECONDS))[0]:
            for session in await send("list_sessions", newest):
                if session["session_id"] not in before:
                    go_on(session["version"] - version)
                    version = session["version"]
        go_on(versions - version)
    return await request


def _tell(replayed: Any) -> None:
    """Show what a replay has found, and end with status 1 if that is a difference."""
    show(replayed, _text)
    if "diverged" in replayed:
        sys.exit(1)


def _text(replayed: Any) -> str:
    others = replayed["other_versions"].items()
    told = [f"{name} was at {each['recorded']}, and is at {each.get('replayed', 'none')}." for name, each in others]
    return "\n".join([*map(printable, told), _found(replayed)])


def _found(replayed: Any) -> str:
    count, difference = replayed["replayed"], replayed.get("diverged")
    records = f"{count} record{'' if count == 1 else 's'}"
    if difference is None:
        more = "" if replayed["complete"] else " There are more: raise --limit."
        return f"{records} came out the same.{more}"
    texts = [printable(difference.get(name, "no error")) for name in ("recorded", "replayed")]
    return (
        f"Record {difference['index']} comes out differently: its {difference['what']} was\n  {texts[0]}\n"
        f"and is now\n  {texts[1]}\nSession {replayed['session']['session_id']} stands after that call."
    )
