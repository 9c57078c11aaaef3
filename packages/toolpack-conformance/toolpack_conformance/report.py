"""Asks all questions, and says what came of them.

A server that hangs or falls over doesn't conform. A probe for which there was no time left, as on a busy
machine, says nothing of the server: it has neither passed nor failed.
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

SECONDS = 600.0  # after which no further request is sent; a server that isn't busy needs a few
SECONDS_A_REQUEST = 15.0
AT_ONCE = 6  # probes: most of them wait most of the time
MOST_SHOWN = 200  # characters of what is said about an answer
NOT_ASKED = "—"  # as the protocol has no words for it
ALONE = "limits"  # whose probes fill memory, which a server may refuse to do for several at once


class Answer(NamedTuple):
    """What came of a probe.

    Attributes:
        failure: Why it hasn't passed; None if it has.
        tried: Whether there was time for it.
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
    """Ask a server for its guarantees.

    Raises:
        Failed: It isn't there, or hasn't the toolpack.
    """
    ends = time.monotonic() + SECONDS
    with Target(url, token, transport, SECONDS_A_REQUEST, ends) as target:
        listed = target.result("list_toolpacks")
        if not isinstance(listed, list) or not any(isinstance(e, dict) and e.get("name") == TOOLPACK for e in listed):
            raise Failed(
                f"The server has no toolpack `{TOOLPACK}`: write it to a folder of toolpacks with "
                "`toolpack-server conform --toolpack`, and start the server with it."
            )
        chosen = [probe for probe in PROBES if probe.guarantee in guarantees]
        failures: dict[Probe, tuple[str | None, bool]] = {}
        for alone in (False, True):
            now = [probe for probe in chosen if (probe.guarantee == ALONE) == alone]
            with ThreadPoolExecutor(1 if alone else AT_ONCE) as pool:
                failures |= zip(now, pool.map(lambda probe: failure(probe.run, target), now), strict=True)
        return [
            Answer(probe.guarantee, probe.sentence, *failures[probe])
            for probe in sorted(chosen, key=lambda probe: GUARANTEES.index(probe.guarantee))
        ]


def conform_otherwise(
    url: str, protocol: str, guarantees: Sequence[str] = GUARANTEES, token: str | None = None
) -> list[Answer]:
    """Ask a server of another protocol for those of our guarantees that it can have.

    Raises:
        Failed: It isn't there.
    """
    ends = time.monotonic() + SECONDS
    opened: list[OtherSession] = []
    base, path = urlsplit(url)._replace(path="").geturl(), urlsplit(url).path or "/mcp"
    open_one: dict[str, Callable[[], OtherSession]] = {
        "ors": lambda: OrsSession(target),
        "openenv": lambda: OpenEnvSession(target, url),
        "mcp": lambda: McpSession(target, path),
    }
    with Target(base, token, None, SECONDS_A_REQUEST, ends, token_paths=("/",)) as target:

        def open_session() -> OtherSession:
            if time.monotonic() > ends:
                raise NotTried("there is no time left")
            opened.append(open_one[protocol]())
            return opened[-1]

        why, _ = failure(lambda _: open_session(), None)
        if why is not None:
            raise Failed(f"No session can be opened: {why}")
        answers = [
            Answer(probe.guarantee, probe.sentence, *failure(probe.run, open_session))
            for probe in OTHERS
            if protocol in probe.protocols and probe.guarantee in guarantees
        ]
        for session in opened:
            session.close()
    return answers


T = TypeVar("T")


def failure(run: Callable[[T], Any], target: T) -> tuple[str | None, bool]:
    """Ask a server; get why a probe hasn't passed, None if it has, and whether there was time for it."""
    try:
        run(target)
    except NotTried as none_left:
        return f"not tried: {none_left}", False
    except Failed as failed:
        return str(failed), True
    except CallFailed as failed:
        return f"a request has failed: {failed}", True
    except Exception as error:  # noqa: BLE001 - a server may answer anything
        return f"an answer has not the form that it must have ({type(error).__name__}: {str(error)[:MOST_SHOWN]})", True
    return None, True


def as_json(answers: Sequence[Answer], url: str, seconds: float) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {}  # what isn't asked has none
    for answer in answers:
        passed = answer.failure is None if answer.tried else None
        rows.setdefault(answer.guarantee, []).append(
            {"check": answer.sentence, "passed": passed, "detail": answer.failure}
        )
    return {"format": "conform-1", "url": url, "seconds": round(seconds, 1), "guarantees": rows}


def as_lines(answers: Sequence[Answer], guarantees: Sequence[str] = ()) -> list[str]:
    """Get the table, then a line for each check that failed; `guarantees` have a row also if nothing was asked."""
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
