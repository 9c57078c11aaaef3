"""`toolpack-server replay` and `bundle`: run a session again, and write it into a file.

The rule: as in `look`: on a server, or in its store. The bundle of a stranger is run in memory, or on the server that
the user names, and nothing but its arguments is used.
"""

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import click

from server.cli.local import look_at, look_options, memory_settings
from server.cli.look import FORMS, show, whole_id
from server.cli.options import packs_options
from server.cli.send import Send, local
from server.observability.log import printable
from server.rpc.caller import Caller
from server.service import Service

LIMIT = 100_000


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
    path = Path(target)
    content = path.read_bytes() if path.is_file() else None

    async def run(send: Send) -> None:
        if content is not None:
            text = base64.b64encode(content).decode()
            _tell(await send("import_bundle", {"bundle": text, "mode": "replay", "limit": limit}))
        else:
            session_id = await whole_id(send, target)
            _tell(await send("replay_session", {"session_id": session_id, "limit": limit}))

    if content is not None and not where["url"]:
        service = Service(memory_settings(where["pack_dir"], where["packs"]))
        asyncio.run(run(local(service, Caller())))
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


def _tell(replayed: Any) -> None:
    """Show what a replay has found, and end with status 1 if that is a difference."""
    show(replayed, _text)
    if replayed["diverged"] is not None:
        sys.exit(1)


def _text(replayed: Any) -> str:
    others = replayed["other_versions"].items()
    told = [f"{name} was at {each['recorded']}, and is at {each['replayed'] or 'none'}." for name, each in others]
    return "\n".join([*map(printable, told), _found(replayed)])


def _found(replayed: Any) -> str:
    count, difference = replayed["replayed"], replayed["diverged"]
    records = f"{count} record{'' if count == 1 else 's'}"
    if difference is None:
        more = "" if replayed["complete"] else " There are more: raise --limit."
        return f"{records} came out the same.{more}"
    texts = [printable(difference[name] or "no error") for name in ("recorded", "replayed")]
    return (
        f"Record {difference['index']} comes out differently: its {difference['what']} was\n  {texts[0]}\n"
        f"and is now\n  {texts[1]}\nSession {replayed['session']['session_id']} stands after that call."
    )
