"""Run of all probes against a server, and the report of their results.

If the server hangs or crashes, the probe fails. If the time runs out before a probe is complete, for example on a busy
machine, the probe has neither passed nor failed.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from toolpack_conformance.others import CallFailed, McpSession, OpenEnvSession, OrsSession, OtherSession
from toolpack_conformance.probes import (  # noqa: F401 - they register their probes
    agents,
    atomic,
    deadline,
    exact,
    history,
    isolation,
    jsonrpc,
    limits,
    mcp,
    once,
    order,
    verdicts,
)
from toolpack_conformance.probes.others import OTHERS
from toolpack_conformance.probes.probe import GUARANTEES, PROBES, Probe
from toolpack_conformance.target import TOOLPACK, Failed, NotTried, Target

SECONDS = 600.0  # max time of a run; no request is sent later. An idle server needs a few seconds
SECONDS_A_REQUEST = 15.0
AT_ONCE = 6  # max number of probes that run at the same time; they mostly wait
MAX_SHOWN = 200  # characters of an exception's text
NOT_ASKED = "—"  # the protocol can't express the guarantee
ALONE = "limits"  # its probes run one by one, because a server might refuse several large requests at a time


class Answer(NamedTuple):
    """The result of a probe.

    Attributes:
        failure: Why the probe failed or wasn't complete. None if it passed.
        tried: Whether there was enough time for the probe.
    """

    guarantee: str
    sentence: str
    failure: str | None
    tried: bool = True


def conform(
    url: str,
    *,
    token: str | None = None,
    transport: httpx.BaseTransport | None = None,
    guarantees: Sequence[str] = GUARANTEES,
) -> list[Answer]:
    """Run the probes against a server and return their results.

    Raises:
        Failed: The server doesn't respond, or doesn't offer the toolpack.
    """
    end_time = time.monotonic() + SECONDS
    with Target(url, token, transport, SECONDS_A_REQUEST, end_time) as target:
        packs = target.result("list_toolpacks")
        if not isinstance(packs, list) or not any(isinstance(e, dict) and e.get("name") == TOOLPACK for e in packs):
            raise Failed(
                f"The server doesn't have the toolpack `{TOOLPACK}`: write it to a folder of toolpacks with "
                "`toolpack-server conform --toolpack`, and start the server with this folder."
            )
        selected_probes = [probe for probe in PROBES if probe.guarantee in guarantees]
        failures: dict[Probe, tuple[str | None, bool]] = {}
        for alone in (False, True):
            group = [probe for probe in selected_probes if (probe.guarantee == ALONE) == alone]
            with ThreadPoolExecutor(1 if alone else AT_ONCE) as pool:
                failures |= zip(group, pool.map(lambda probe: failure(probe.run, target), group), strict=True)
        return [
            Answer(probe.guarantee, probe.sentence, *failures[probe])
            for probe in sorted(selected_probes, key=lambda probe: GUARANTEES.index(probe.guarantee))
        ]


def conform_other(
    url: str, protocol: str, guarantees: Sequence[str] = GUARANTEES, token: str | None = None
) -> list[Answer]:
    """Run the probes of the guarantees that another protocol can express. Return their results.

    Raises:
        Failed: The server doesn't respond.
    """
    end_time = time.monotonic() + SECONDS
    sessions: list[OtherSession] = []
    base, path = urlsplit(url)._replace(path="").geturl(), urlsplit(url).path or "/mcp"
    openers: dict[str, Callable[[], OtherSession]] = {
        "ors": lambda: OrsSession(target),
        "openenv": lambda: OpenEnvSession(target, url),
        "mcp": lambda: McpSession(target, path),
    }
    with Target(base, token, None, SECONDS_A_REQUEST, end_time, token_paths=("/",)) as target:

        def open_session() -> OtherSession:
            if time.monotonic() > end_time:
                raise NotTried("there is no time left")
            sessions.append(openers[protocol]())
            return sessions[-1]

        why, _ = failure(lambda _: open_session(), None)
        if why is not None:
            raise Failed(f"No session can be opened: {why}")
        answers = [
            Answer(probe.guarantee, probe.sentence, *failure(probe.run, open_session))
            for probe in OTHERS
            if protocol in probe.protocols and probe.guarantee in guarantees
        ]
        for session in sessions:
            session.close()
    return answers


T = TypeVar("T")


def failure(run: Callable[[T], Any], target: T) -> tuple[str | None, bool]:
    """Run a probe. Return why it failed, or None if it passed, and whether there was enough time for it."""
    try:
        run(target)
    except NotTried as error:
        return f"not tried: {error}", False
    except Failed as failed:
        return str(failed), True
    except CallFailed as failed:
        return f"a request failed: {failed}", True
    except Exception as error:  # noqa: BLE001 - a server can send anything
        return f"a response doesn't have the expected form ({type(error).__name__}: {str(error)[:MAX_SHOWN]})", True
    return None, True


def as_json(answers: Sequence[Answer], url: str, seconds: float) -> dict[str, Any]:
    """Return the report as a JSON object, which `--json` writes to a file."""
    rows: dict[str, list[dict[str, Any]]] = {}  # only guarantees that the protocol can express
    for answer in answers:
        passed = answer.failure is None if answer.tried else None
        rows.setdefault(answer.guarantee, []).append(
            {"check": answer.sentence, "passed": passed, "detail": answer.failure}
        )
    return {"format": "conform-1", "url": url, "seconds": round(seconds, 1), "guarantees": rows}


def as_lines(answers: Sequence[Answer], guarantees: Sequence[str] = ()) -> list[str]:
    """Return the lines of the table, then one line per failed check. The table has a row for each guarantee."""
    lines = [f"{'guarantee':<22} checks  passed"]
    for guarantee in guarantees or dict.fromkeys(answer.guarantee for answer in answers):
        row = [answer for answer in answers if answer.guarantee == guarantee]
        passed = sum(answer.failure is None for answer in row)
        if not row:
            lines.append(f"{guarantee:<22} {NOT_ASKED:>6}  {NOT_ASKED:>6}")
            continue
        worst = "  FAILED" if any(each.failure for each in row if each.tried) else "  not all tried"
        lines.append(f"{guarantee:<22} {len(row):>6}  {passed:>6}{'' if passed == len(row) else worst}")
    failed = [answer for answer in answers if answer.failure is not None]
    lines += [f"{each.guarantee}: {each.sentence} {each.failure}" for each in failed]
    return lines
