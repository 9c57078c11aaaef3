"""Command `verify`, which runs the sessions of a receipt again and reports whether the results are equal.

A stranger might have written the receipt, so all checks that run no functions come first. Then the sessions run in a
service in this process, and their functions in sandboxed processes. The exit status is 0 if everything is equal, 1 if
something differs, and 2 if the receipt can't be verified.
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
from toolpack_server.features.replay.code import code_digests
from toolpack_server.features.replay.methods import replay_bundle
from toolpack_server.features.replay.receipts.entries import create_bundle, create_entry, find_difference
from toolpack_server.features.replay.receipts.keys import check_installed, public_key
from toolpack_server.features.replay.receipts.receipt import (
    MAX_BYTES,
    Receipt,
    ReceiptEntry,
    ReceiptPart,
    ReceiptRefusedError,
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

LIMIT = 100_000  # max records of a session that are run again
MAX_SHOWN = 400  # max characters of a recorded or replayed value in the report
NO_SEED = "it has no seed and no clock, so functions that use the time or random numbers return other results"

_SessionResult = Mapping[str, Any]
"""The result of verifying one session, as `--json` prints it."""


@click.command()
@packs_options
@click.option(
    "--key",
    metavar="KEY|FILE",
    help="Accept only a receipt with this public key. The value is the key, or a file with it.",
)
@click.option("--other-code", is_flag=True, help="Run the sessions even if the code here isn't the receipt's.")
@click.option("--no-sandbox", is_flag=True, help="Run the functions with access to files and the network.")
@click.option(
    "--html",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Write an HTML page of the sessions that were run again to this file. It needs no server.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
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
    """Run the sessions of a receipt from `evaluate --receipt` again, and report whether the results are equal."""
    with _refuse_errors():
        check_installed()
        receipt = read(file, key and public_key(key))
        settings = _settings(pack_dir, packs, sandbox=not no_sandbox)
        catalog = catalog_of(settings)
        code_differences = _code_differences(catalog, receipt)
        if code_differences and not other_code:
            raise ReceiptRefusedError(
                f"The receipt was made with other code, so nothing was run: {'; '.join(code_differences)}. Install "
                "that code, or give --other-code to run the sessions with the code here."
            )
        results, page = asyncio.run(_verify_sessions(Service(settings, catalog), receipt, with_page=html is not None))
        if html is not None and page is not None:
            try:
                html.write(page)
                html.flush()
            except OSError:
                # From Python 3.14 on, a file retains what it couldn't write, so click's later `close` would fail again.
                with contextlib.suppress(OSError):
                    html.close()
                raise
        if as_json:
            head = {"key": receipt.key, "made": receipt.times.made, "other_code": code_differences}
            echo(canonical({**head, "equal": not any(map(_differs, results)), "sessions": results}).decode())
        else:
            echo(*_report_lines(receipt, code_differences, results, has_key=key is not None))
    if any(map(_differs, results)):
        sys.exit(1)


@contextlib.contextmanager
def _refuse_errors() -> Iterator[None]:
    """Replace errors in a block by `ReceiptRefusedError`, so that the command exits with status 2."""
    try:
        yield
    except click.ClickException as error:
        raise ReceiptRefusedError(error.format_message()) from None
    except ToolpackServerError as error:
        raise ReceiptRefusedError(str(error)) from None
    except OSError as error:
        raise ReceiptRefusedError(f"{error.strerror or error}.") from None


def _settings(pack_dir: tuple[Path, ...], packs: str | None, *, sandbox: bool) -> Settings:
    """Return the settings of the service that runs the sessions in memory."""
    process = sandbox or sys.platform == "linux"
    settings = memory_settings(
        pack_dir,
        packs,
        isolation="process" if process else THREAD,
        # With these limits any receipt can be run, even one from a server with larger limits.
        max_body_bytes=2 * MAX_BYTES,
        max_bytes_in_flight=16 * MAX_BYTES,
    )
    return settings.give(read_settings(ExecutorsSettings, sandbox=("files", "network"))) if sandbox else settings


def _code_differences(catalog: Catalog, receipt: Receipt) -> list[str]:
    """Describe each difference between the code here and the receipt's code.

    Raises:
        ReceiptRefusedError: A toolpack isn't loaded.
    """
    recorded = receipt.code
    here = code_digests(catalog).of(recorded["toolpacks"])
    differences = []
    if recorded["python"] != here["python"]:
        differences.append(f"Python is {here['python']}, and was {recorded['python']}")
    if recorded["server"] != here["server"]:
        differences.append(f"the server is {_code(here['server'])}, and was {_code(recorded['server'])}")
    for name, code in recorded["toolpacks"].items():
        if name not in here["toolpacks"]:
            raise ReceiptRefusedError(
                f"The toolpack {name[:80]!r} isn't loaded: name it with --packs, or its folder with --pack-dir."
            )
        if code != here["toolpacks"][name]:
            differences.append(f"the toolpack {name!r} is {_code(here['toolpacks'][name])}, and was {_code(code)}")
    return differences


def _code(code: Mapping[str, Any]) -> str:
    return f"{code.get('version', '')} {code['digest'][:12]}…".strip()


async def _verify_sessions(
    service: Service, receipt: Receipt, *, with_page: bool
) -> tuple[list[_SessionResult], str | None]:
    """Run all sessions of a receipt again. Return their results, and with `with_page` an HTML page of them."""
    results: list[_SessionResult] = []
    async with service.running():
        send = local(service, Caller())
        page = RunsPage(send, {}, None) if with_page else None
        with progress("Verifying", len(receipt.sessions)) as advance:
            for entry, times in zip(receipt.sessions, receipt.times.sessions, strict=True):
                results.append(await _replay_session(service, send, len(results), entry, times, page))
                advance(1)
        if page is None:
            return results, None
        equal = len(results) - sum(map(_differs, results))
        summary = f"{equal} of {len(results)} sessions are equal to those in the receipt with key {receipt.key}."
        return results, await page.html(summary)


async def _replay_session(
    service: Service, send: Send, number: int, entry: ReceiptEntry, times: list[Times], page: RunsPage | None
) -> _SessionResult:
    """Run a session of a receipt again, evaluate it, and return the result.

    Args:
        number: The session's position in the receipt, from 0.
        page: The HTML page to which the session is added, if there is one.

    Raises:
        ReceiptRefusedError: The session can't be run again.
    """
    session_ids: list[str] = []
    try:
        diverged = await _replay_records(service, send, entry, times, session_ids)
        query = {"labels": entry.labels, "evaluate": True, "limit": len(session_ids)}
        listed = await send("summarize_sessions", query)
        (summary,) = (each for each in listed["sessions"] if each["session_id"] == session_ids[-1])
        new_entry, _, _ = await create_entry(send, summary)
    except (click.ClickException, ToolpackServerError) as error:
        reason = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise ReceiptRefusedError(
            f"Session {number} of the receipt ({entry.task[:80]}) can't be run again: {reason}"
        ) from None
    difference = diverged or find_difference(entry, new_entry)
    if page is not None:
        await page.add(summary)
    for session_id in session_ids:
        await send("close_session", {"session_id": session_id})
    result = {
        "number": number,
        "task": entry.task,
        "labels": entry.labels,
        "records": len(entry.all_records),
        "seeded": {"seed", "clock"} <= {name for name, value in entry.details.items() if value is not None},
        "verdict": new_entry.verdict,
        "equal": difference is None,
    }
    if difference is None:
        return result
    if "position" in difference:
        record = entry.all_records[difference.pop("position")]
        difference = {"index": record["index"], "record": record.get("function", record["kind"]), **difference}
    return {**result, "difference": difference}


async def _replay_records(
    service: Service, send: Send, entry: ReceiptEntry, times: list[Times], session_ids: list[str]
) -> dict[str, Any] | None:
    """Run the records of a session again. If it is a fork, run the records of its ancestors first.

    Args:
        session_ids: List to which this function adds the ids of the new sessions.

    Returns:
        The first difference, with the record's number among all records as `position`, or None without a difference.
    """
    kind = next(
        each for each in service.methods if issubclass(each, ForkSession)
    )  # this class also has the parameters that features add
    done, previous = 0, None
    for part in entry.parts:
        bundle = create_bundle(entry, part, times[done : done + len(part.records)], service.settings)
        if previous is None:
            replayed = await send("import_bundle", {"bundle": bundle, "mode": "replay", "limit": LIMIT})
        else:
            fork = _fork(kind, part, previous, session_ids[-1], entry.labels)

            # The default value binds the fork of this iteration.
            async def begin(_head: BundleHead, fork: ForkSession = fork) -> Session:
                return (await service.sessions.fork("", fork))[0]

            request = ImportRequest.model_validate({"bundle": bundle, "mode": "replay", "limit": LIMIT})
            replayed = await replay_bundle(service, "", request, begin)
        session_ids.append(replayed["session"]["session_id"])
        if diverged := replayed.get("diverged"):
            return {**diverged, "position": done + diverged["index"]}
        done, previous = done + len(part.records), part
    return None


def _fork(
    kind: type[ForkSession], part: ReceiptPart, parent: ReceiptPart, session_id: str, labels: Mapping[str, str]
) -> ForkSession:
    """Return the request that forks a session as in the receipt.

    Details that the parent has and the fork lacks are requested as empty, because the fork would otherwise inherit
    them.

    Args:
        kind: The class of the request, with the parameters of features.
        part: The history of the fork.
        parent: The history of the session to fork.
        session_id: The id of the session to fork, in this process.
        labels: The labels of the fork.
    """
    own = kind.model_fields.keys() - ForkSession.model_fields.keys()
    params = {name: part.details.get(name, {}) for name in own & {*part.details, *parent.details}}
    count = len(parent.records)
    # A seeded fork that began before a record has ticks that continue after all records of the parent's history. The
    # ticks of a fork that began at a version continue after the record that created the version.
    if part.details.get("ticks") == parent.details.get("ticks", 0) + count:
        params["before"] = count
    else:
        params["version"] = parent.version
    try:
        request = kind.model_validate({**params, "session_id": session_id, "labels": dict(labels)})
    except ValidationError as error:
        location = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))[:80]
        raise click.ClickException(f"its {location} is invalid for a fork.") from None
    return request.as_resolved()


def _differs(result: _SessionResult) -> bool:
    return not result["equal"]


def _report_lines(
    receipt: Receipt, code_differences: Sequence[str], results: Sequence[_SessionResult], *, has_key: bool
) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"Signed at {receipt.times.made} with key {receipt.key}."
    if not has_key:
        yield "The receipt doesn't prove whose key this is: give --key to accept only a key that you know."
    for text in code_differences:
        yield f"Other code: {text}."
    copies = len(receipt.sessions) - len({canonical(entry.shown()) for entry in receipt.sessions})
    if copies:
        yield f"{copies} of {len(results)} sessions differ from another one only in their times. They might be copies."
    for each in results:
        labels = " ".join(f"{name}={value}" for name, value in each["labels"].items())
        yield f"{'equal' if each['equal'] else 'DIFFERS':<8} {each['number']:>4}  {each['task']}  {labels}".rstrip()
        if "difference" in each:
            yield from _difference_text(each)
    yield ""
    yield from rates_table(rates(each["verdict"] for each in results)).split("\n")
    yield ""
    equal = len(results) - sum(map(_differs, results))
    yield f"equal: all {equal} sessions" if equal == len(results) else f"equal: {equal} of {len(results)} sessions"


def _difference_text(result: _SessionResult) -> Iterator[str]:
    """Yield the lines about the first difference of a session."""
    difference = result["difference"]
    recorded, replayed = (printable(difference.get(name) or "nothing")[:MAX_SHOWN] for name in ("recorded", "replayed"))
    where = f"record {difference['index']}, {difference['record']}: " if "record" in difference else ""
    yield f"  {where}its {difference['what']} was {recorded}"
    yield f"  and is now {replayed}"
    if not result["seeded"]:
        yield f"  ({NO_SEED})"
