"""Commands `replay`, which runs a session again, and `session bundle`, which writes a session to a file.

Both work on a running server or directly on its store. `replay` also accepts a bundle, which it runs in memory, or with
`--url` on that server. A stranger might have written the bundle, so its calls are run again and its stored environments
aren't used.
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
from toolpack_server.features.replay.bundle_format import compressed_part, read_line, unpack

LIMIT = 100_000
MAX_BYTES = 2**28  # max size of a bundle: the longest response that `session bundle` accepts
HEAD_BYTES = 2**26  # max size of an unpacked head, larger than the max size of a request
POLL_SECONDS = 0.3  # delay between two polls of a replay's progress


@click.command(epilog=FORMS)
@look_options
@packs_options
@click.option("--limit", type=click.IntRange(1, LIMIT), default=LIMIT, help="Maximum number of records to run.")
@click.argument("target", metavar="FILE|SESSION")
def replay(target: str, limit: int, **where: Any) -> None:
    """Run a session again, and show the first difference.

    FILE is a bundle; without --url it runs in memory. SESSION is an id or the beginning of one. The exit status is 1 if
    there is a difference.
    """
    content = _content(Path(target))

    async def run(send: Send) -> None:
        if content is not None:
            params = {"bundle": base64.b64encode(content).decode(), "mode": "replay", "limit": limit}
            labels, versions = _head(content)
            request = send("import_bundle", params)
            _report(await _show_progress(send, request, {"labels": labels}, min(versions, limit)))
        else:
            session = await send("get_session", {"session_id": await whole_id(send, target)})
            params = {"session_id": session["session_id"], "limit": limit}
            request = send("replay_session", params)
            forks = {"parent": session["session_id"]}
            _report(await _show_progress(send, request, forks, min(session["version"], limit)))

    if content is not None and not where["url"]:
        ask_in_memory(run, where["pack_dir"], where["packs"])
    else:
        look_at(run, **where)


@click.command()
@look_options
@packs_options
@click.option("--ends", is_flag=True, help="Write only the first and the current version.")
@click.argument("session")
def bundle(session: str, ends: bool, **where: Any) -> None:
    """Write a SESSION to standard output, as a bundle. The beginning of its id is enough."""
    if sys.stdout.isatty():
        raise click.UsageError("A bundle is binary, so it isn't written to a terminal: redirect it with `> FILE`.")

    async def write(send: Send) -> None:
        session_id = await whole_id(send, session)
        exported = await send("export_bundle", {"session_id": session_id, "versions": "ends" if ends else "all"})
        sys.stdout.buffer.write(base64.b64decode(exported["bundle"]))

    look_at(write, **where)


def _content(path: Path) -> bytes | None:
    """Return the content of a file, or None if the file doesn't exist."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise click.ClickException(f"{path} isn't a bundle: it has more than {MAX_BYTES} bytes.")
    return content


def _head(bundle: bytes) -> tuple[Mapping[str, str], int]:
    """Return the labels of a bundle's session and its number of versions."""
    with contextlib.suppress(RequestError):  # the request will report what is wrong with the bundle
        lines = unpack(compressed_part(bundle, None), HEAD_BYTES, HEAD_BYTES, lambda _: None, blobs=False)
        head = read_line(next(lines)).head
        if head is not None:
            return head.labels, head.version
    return {}, 0


async def _show_progress(send: Send, replay: Awaitable[Any], query: Mapping[str, Any], versions: int) -> Any:
    """Wait for a replay, and show how many versions its session has.

    Args:
        query: Parameters for `list_sessions`. The newest session that they select is the session of the replay.
        versions: The number of versions that the session has when the replay is complete.
    """
    newest = {**query, "order": "-created", "limit": 1}
    before, version = [each["session_id"] for each in await send("list_sessions", newest)], 0
    request = asyncio.ensure_future(replay)
    with progress("Replaying", versions) as advance:
        while not (await asyncio.wait([request], timeout=POLL_SECONDS))[0]:
            for session in await send("list_sessions", newest):
                if session["session_id"] not in before:
                    advance(session["version"] - version)
                    version = session["version"]
        advance(versions - version)
    return await request


def _report(replayed: Any) -> None:
    """Show the result of a replay, and exit with status 1 if there is a difference."""
    show(replayed, _text)
    if "diverged" in replayed:
        sys.exit(1)


def _text(replayed: Any) -> str:
    """Return the report of a replay: the toolpacks with other versions, and the first difference if there is one."""
    others = replayed["other_versions"].items()
    lines = [f"{name} was at {each['recorded']}, and is at {each.get('replayed', 'none')}." for name, each in others]
    return "\n".join([*map(printable, lines), _comparison(replayed)])


def _comparison(replayed: Any) -> str:
    """Return a text that says how many records had the same result, or that shows the first difference."""
    count, difference = replayed["replayed"], replayed.get("diverged")
    records = f"{count} record{'' if count == 1 else 's'}"
    if difference is None:
        more = "" if replayed["complete"] else " There are more: raise --limit."
        return f"{records} came out the same.{more}"
    texts = [printable(difference.get(name, "no error")) for name in ("recorded", "replayed")]
    return (
        f"Record {difference['index']} comes out differently: its {difference['what']} was\n  {texts[0]}\n"
        f"and is now\n  {texts[1]}\nSession {replayed['session']['session_id']} has the state after that call."
    )
