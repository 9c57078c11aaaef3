"""`toolpack-server verify`: runs the sessions of a receipt again, and says whether all comes out equal.

Whoever has made the receipt is a stranger. All that can be checked without running anything is checked first;
then each session is run in a service of its own in this process, its functions in processes in a sandbox. The exit
status is 0 if all is equal, 1 if something differs, 2 if the receipt can't be verified.
"""

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click
from pydantic import ValidationError

from toolpack_server.base.errors import ToolpackServerError
from toolpack_server.base.settings import THREAD, Settings, read_settings
from toolpack_server.base.terminal import echo, printable
from toolpack_server.cli.local import memory_settings
from toolpack_server.cli.options import packs_options
from toolpack_server.cli.progress import progress
from toolpack_server.cli.requests import Send, local
from toolpack_server.features.evaluation.tasks.pass_rates import rates, rates_table
from toolpack_server.features.evaluation.tasks.report import RunsPage
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.features.replay.bundle_format import BundleHead
from toolpack_server.features.replay.bundles import ImportRequest
from toolpack_server.features.replay.code import codes_of
from toolpack_server.features.replay.methods import run_again
from toolpack_server.features.replay.receipts.entries import bundle_of, difference, entry_of
from toolpack_server.features.replay.receipts.keys import check_installed, public_key
from toolpack_server.features.replay.receipts.receipt import (
    MOST_BYTES,
    Receipt,
    ReceiptEntry,
    ReceiptPart,
    Refused,
    Times,
    canonical,
    read,
)
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import catalog_of
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.methods import ForkSession
from toolpack_server.wiring.service import Service

LIMIT = 100_000  # records of a session
MAX_SHOWN = 400  # characters of what was recorded or replayed
NO_SEED = "it has no seed and no clock, so functions that look at the clock or draw random numbers do something else"

_Found = Mapping[str, Any]


@click.command()
@packs_options
@click.option("--key", metavar="KEY|FILE", help="Whose receipt it must be: a public key, or a file that holds it.")
@click.option("--other-code", is_flag=True, help="Run it also if the code here is another than that of the receipt.")
@click.option("--no-sandbox", is_flag=True, help="Run the functions where they can reach files and the network.")
@click.option(
    "--html",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Write a page of the sessions that were run again to this file, which needs no server.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def verify(
    file: Path,
    pack_dir: tuple[Path, ...],
    packs: str | None,
    key: str | None,
    other_code: bool,
    no_sandbox: bool,
    html: IO[str] | None,
    as_json: bool,
) -> None:
    """Run the sessions of a receipt, from `evaluate --receipt`, again, and say whether all comes out equal."""
    with _refusing():
        check_installed()
        receipt = read(file, key and public_key(key))
        settings = _settings(pack_dir, packs, sandbox=not no_sandbox)
        catalog = catalog_of(settings)
        others = _other_code(catalog, receipt)
        if others and not other_code:
            raise Refused(
                f"The receipt was made by other code, so nothing was run: {'; '.join(others)}. Install that code, or "
                "run the sessions with this one by --other-code."
            )
        found, page = asyncio.run(_verified(Service(settings, catalog), receipt, with_page=html is not None))
        if html is not None and page is not None:
            html.write(page)
            html.flush()
        if as_json:
            said = {"key": receipt.key, "made": receipt.times.made, "other_code": others}
            echo(canonical({**said, "equal": not any(map(_differs, found)), "sessions": found}).decode())
        else:
            echo(*_text(receipt, others, found, has_key=key is not None))
    if any(map(_differs, found)):
        sys.exit(1)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Give whatever can't be done the status 2."""
    try:
        yield
    except click.ClickException as error:
        raise Refused(error.format_message()) from None
    except ToolpackServerError as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"{error.strerror or error}.") from None


def _settings(pack_dir: tuple[Path, ...], packs: str | None, *, sandbox: bool) -> Settings:
    process = sandbox or sys.platform == "linux"
    settings = memory_settings(
        pack_dir,
        packs,
        isolation="process" if process else THREAD,
        # Whatever a receipt may have is taken, wherever it was made.
        max_body_bytes=2 * MOST_BYTES,
        max_bytes_in_flight=16 * MOST_BYTES,
    )
    return settings.give(read_settings(ExecutorsSettings, sandbox=("files", "network"))) if sandbox else settings


def _other_code(catalog: Catalog, receipt: Receipt) -> list[str]:
    """Say what of the code here isn't what the receipt names."""
    named = receipt.code
    here = codes_of(catalog).of(named["toolpacks"])
    found = []
    if named["python"] != here["python"]:
        found.append(f"Python is {here['python']}, and was {named['python']}")
    if named["server"] != here["server"]:
        found.append(f"the server is {_code(here['server'])}, and was {_code(named['server'])}")
    for name, code in named["toolpacks"].items():
        if name not in here["toolpacks"]:
            raise Refused(
                f"The toolpack {name[:80]!r} isn't loaded: name it with --packs, or its folder by --pack-dir."
            )
        if code != here["toolpacks"][name]:
            found.append(f"the toolpack {name!r} is {_code(here['toolpacks'][name])}, and was {_code(code)}")
    return found


def _code(code: Mapping[str, Any]) -> str:
    return f"{code.get('version', '')} {code['digest'][:12]}…".strip()


async def _verified(service: Service, receipt: Receipt, *, with_page: bool) -> tuple[list[_Found], str | None]:
    found: list[_Found] = []
    async with service.running():
        send = local(service, Caller())
        page = RunsPage(send, {}, None) if with_page else None
        with progress("Verifying", len(receipt.sessions)) as go_on:
            for entry, times in zip(receipt.sessions, receipt.times.sessions, strict=True):
                found.append(await _run_again(service, send, len(found), entry, times, page))
                go_on(1)
        if page is None:
            return found, None
        equal = len(found) - sum(map(_differs, found))
        said = f"{equal} of {len(found)} sessions came out equal when they were run again"
        return found, await page.html(f"{said}, of the receipt that was signed with key {receipt.key}.")


async def _run_again(
    service: Service, send: Send, number: int, entry: ReceiptEntry, times: list[Times], page: RunsPage | None
) -> _Found:
    """Run a session again, evaluate it, and get what differs."""
    made: list[str] = []
    try:
        diverged = await _repeat(service, send, entry, times, made)
        listed = await send("summarize_sessions", {"labels": entry.labels, "evaluate": True, "limit": len(made)})
        (summary,) = (each for each in listed["sessions"] if each["session_id"] == made[-1])
        again, _, _ = await entry_of(send, summary)
    except (click.ClickException, ToolpackServerError) as error:
        said = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise Refused(f"Session {number} of the receipt ({entry.task[:80]}) can't be run again: {said}") from None
    differs = diverged or difference(entry, again)
    if page is not None:
        await page.add(summary)
    for session_id in made:
        await send("close_session", {"session_id": session_id})
    found = {
        "number": number,
        "task": entry.task,
        "labels": entry.labels,
        "records": len(entry.all_records),
        "seeded": {"seed", "clock"} <= {name for name, value in entry.details.items() if value is not None},
        "verdict": again.verdict,
        "equal": differs is None,
    }
    if differs is None:
        return found
    if "place" in differs:
        record = entry.all_records[differs.pop("place")]
        differs = {"index": record["index"], "record": record.get("function", record["kind"]), **differs}
    return {**found, "difference": differs}


async def _repeat(
    service: Service, send: Send, entry: ReceiptEntry, times: list[Times], made: list[str]
) -> dict[str, Any] | None:
    """Run the records of a session again, first those of the sessions from which it was forked.

    Args:
        made: Gets the sessions in which they were run.

    Returns:
        The first difference; with the place of the record among all of them.
    """
    kind = next(each for each in service.methods if issubclass(each, ForkSession))
    done, before = 0, None
    for part in entry.parts:
        bundle = bundle_of(entry, part, times[done : done + len(part.records)], service.settings)
        if before is None:
            replayed = await send("import_bundle", {"bundle": bundle, "mode": "replay", "limit": LIMIT})
        else:
            fork = _fork(kind, part, before, made[-1], entry.labels)

            async def begin(_head: BundleHead, fork: ForkSession = fork) -> Session:
                return (await service.sessions.fork("", fork))[0]

            request = ImportRequest.model_validate({"bundle": bundle, "mode": "replay", "limit": LIMIT})
            replayed = await run_again(service, "", request, begin)
        made.append(replayed["session"]["session_id"])
        if diverged := replayed.get("diverged"):
            return {**diverged, "place": done + diverged["index"]}
        done, before = done + len(part.records), part
    return None


def _fork(
    kind: type[ForkSession], part: ReceiptPart, before: ReceiptPart, session_id: str, labels: Mapping[str, str]
) -> ForkSession:
    """Get the request for a fork as the one of the receipt was forked; without what its parent had and it hasn't."""
    own = kind.model_fields.keys() - ForkSession.model_fields.keys()
    given = {name: part.details.get(name, {}) for name in own & {*part.details, *before.details}}
    try:
        request = kind.model_validate(
            {**given, "session_id": session_id, "version": before.version, "labels": dict(labels)}
        )
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))[:80]
        raise click.ClickException(f"no fork can have its {place}.") from None
    return request.as_resolved()


def _differs(found: _Found) -> bool:
    return not found["equal"]


def _text(receipt: Receipt, others: Sequence[str], found: Sequence[_Found], *, has_key: bool) -> Iterator[str]:
    yield f"Signed at {receipt.times.made} with key {receipt.key}."
    if not has_key:
        yield "Whose key that is, a receipt can't say: --key refuses all others."
    for text in others:
        yield f"Other code: {text}."
    same = len(receipt.sessions) - len({canonical(entry.shown()) for entry in receipt.sessions})
    if same:
        yield f"The same as another session but for its times, so perhaps counted twice: {same} of {len(found)}."
    for each in found:
        labels = " ".join(f"{name}={value}" for name, value in each["labels"].items())
        yield f"{'equal' if each['equal'] else 'DIFFERS':<8} {each['number']:>4}  {each['task']}  {labels}".rstrip()
        if "difference" in each:
            yield from _difference_text(each)
    yield ""
    yield from rates_table(rates(each["verdict"] for each in found)).split("\n")
    yield ""
    equal = len(found) - sum(map(_differs, found))
    yield f"equal: all {equal} sessions" if equal == len(found) else f"equal: {equal} of {len(found)} sessions"


def _difference_text(found: _Found) -> Iterator[str]:
    difference = found["difference"]
    recorded, replayed = (printable(difference.get(name) or "nothing")[:MAX_SHOWN] for name in ("recorded", "replayed"))
    where = f"record {difference['index']}, {difference['record']}: " if "record" in difference else ""
    yield f"  {where}its {difference['what']} was {recorded}"
    yield f"  and is now {replayed}"
    if not found["seeded"]:
        yield f"  ({NO_SEED})"
