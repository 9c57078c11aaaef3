"""Asks all questions, and says what came of them.

The rule: a probe that can't be run has failed, so that a server that hangs or falls over isn't thought to conform.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from server.features.conformance.others import CallFailed, McpSession, OpenEnvSession, OtherSession
from server.features.conformance.probes import (  # noqa: F401 - they register their probes
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
from server.features.conformance.probes.others import OTHERS
from server.features.conformance.probes.probe import GUARANTEES, PROBES, Probe
from server.features.conformance.target import TOOLPACK, Failed, Target

SECONDS = 110.0  # after which no further probe begins
SECONDS_A_REQUEST = 15.0
AT_ONCE = 6  # probes: most of them wait most of the time
NOT_ASKED = "—"  # as the protocol has no words for it
ALONE = "limits"  # whose probes fill memory, which a server may refuse to do for several at once


class Answer(NamedTuple):
    guarantee: str
    sentence: str
    failure: str | None


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
    with Target(url, token, transport, SECONDS_A_REQUEST) as target:
        names = [toolpack["name"] for toolpack in target.result("list_toolpacks")]
        if TOOLPACK not in names:
            raise Failed(
                f"The server has no toolpack `{TOOLPACK}`: write it to a folder of toolpacks with "
                "`toolpack-server conform --toolpack`, and start the server with it."
            )
        chosen = [probe for probe in PROBES if probe.guarantee in guarantees]
        failures: dict[Probe, str | None] = {}
        for alone in (False, True):
            now = [probe for probe in chosen if (probe.guarantee == ALONE) == alone]
            with ThreadPoolExecutor(1 if alone else AT_ONCE) as pool:
                failures |= zip(now, pool.map(lambda probe: failure(probe.run, target, ends), now), strict=True)
        return [
            Answer(probe.guarantee, probe.sentence, failures[probe])
            for probe in sorted(chosen, key=lambda probe: GUARANTEES.index(probe.guarantee))
        ]


def conform_otherwise(url: str, protocol: str, guarantees: Sequence[str] = GUARANTEES) -> list[Answer]:
    """Ask a server of another protocol for those of our guarantees that it can have.

    Raises:
        Failed: It isn't there.
    """
    ends = time.monotonic() + SECONDS
    opened: list[OtherSession] = []
    base, path = urlsplit(url)._replace(path="").geturl(), urlsplit(url).path or "/mcp"
    with Target(base, None, None, SECONDS_A_REQUEST) as target:

        def open_session() -> OtherSession:
            opened.append(OpenEnvSession(url) if protocol == "openenv" else McpSession(target, path))
            return opened[-1]

        open_session()
        answers = [
            Answer(probe.guarantee, probe.sentence, failure(probe.run, open_session, ends))
            for probe in OTHERS
            if protocol in probe.protocols and probe.guarantee in guarantees
        ]
        for session in opened:
            session.close()
    return answers


T = TypeVar("T")


def failure(run: Callable[[T], None], target: T, ends: float) -> str | None:
    """Ask a server, and say why a probe has failed; None if it hasn't."""
    if time.monotonic() > ends:
        return f"not tried, because {SECONDS:g} s are over"
    try:
        run(target)
    except Failed as failed:
        return str(failed)
    except CallFailed as failed:
        return f"a request has failed: {failed}"
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return f"an answer has not the form that it must have ({type(error).__name__}: {error})"
    return None


def as_json(answers: Sequence[Answer], url: str, seconds: float) -> dict[str, Any]:
    rows: dict[str, list[dict[str, Any]]] = {}  # what isn't asked has none
    for answer in answers:
        rows.setdefault(answer.guarantee, []).append(
            {"check": answer.sentence, "passed": answer.failure is None, "detail": answer.failure}
        )
    return {"format": "conform-1", "url": url, "seconds": round(seconds, 1), "guarantees": rows}


def as_lines(answers: Sequence[Answer], guarantees: Sequence[str] = ()) -> list[str]:
    """Get the table, then a line for each check that failed; `guarantees` have a row also if nothing was asked."""
    lines = [f"{'guarantee':<22} checks  passed"]
    for guarantee in guarantees or dict.fromkeys(answer.guarantee for answer in answers):
        failures = [answer.failure for answer in answers if answer.guarantee == guarantee]
        passed = failures.count(None)
        if not failures:
            lines.append(f"{guarantee:<22} {NOT_ASKED:>6}  {NOT_ASKED:>6}")
            continue
        lines.append(f"{guarantee:<22} {len(failures):>6}  {passed:>6}{'' if passed == len(failures) else '  FAILED'}")
    failed = [answer for answer in answers if answer.failure is not None]
    lines += [f"{each.guarantee}: {each.sentence} {each.failure}" for each in failed]
    return lines
