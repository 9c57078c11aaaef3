"""Summaries: what has happened in each of many sessions, in a few words, so that runs can be seen at a glance.

The rule: nothing is evaluated here and nothing is renewed: a summary is read off the records. An answer takes a part
of a second; whoever wants more sessions asks again.
"""

import time
from dataclasses import replace
from typing import Any

from server.base.errors import StateDamagedError
from server.features.tasks.runs import variant_of
from server.features.tasks.verdicts import recorded_verdict
from server.jsonio.strict import dumps, loads
from server.protocol.results import Session, SessionOutline, SessionSummaries, SessionSummary, Verdict
from server.rpc.method import App
from server.sessions.reader import SessionQuery

_AT_ONCE = 50  # sessions that are listed
_RECORDS_AT_ONCE = 200
_BYTES_AT_ONCE = 2**20
_SECONDS = 0.5
_NOT_SAID = {"index", "kind", "version", "state", "started_at", "duration_ms", "place"}  # nobody looks for these


class Summaries:
    def __init__(self, app: App) -> None:
        self._sessions = app.sessions
        self._store = app.context.store
        self._records = app.context.records
        self._kinds = app.context.record_kinds
        self._max_bytes = app.settings.max_list_bytes

    async def page(self, query: SessionQuery, text: str) -> SessionSummaries:
        """Get the next summaries; see `methods.SummarizeSessions`."""
        searched = _searched(text)[1:-1]
        return await self._sessions.compute(lambda: self._page(query, searched), query.owner or "", "summaries")

    def _page(self, query: SessionQuery, text: str) -> SessionSummaries:
        found: list[SessionSummary] = []
        reader, room, ends = self._sessions.heavy_reader, self._max_bytes, time.monotonic() + _SECONDS
        after = query.after
        while page := reader.list_sessions(replace(query, after=after, limit=_AT_ONCE)):
            for session in page:
                summary = self._summary(session, text)
                if summary is not None:
                    room -= len(dumps(summary))
                    if room < 0 and found:
                        return {"sessions": found, "next": after}
                    found.append(summary)
                after = session["session_id"]
                if len(found) == query.limit or time.monotonic() > ends:
                    return {"sessions": found, "next": after}
        return {"sessions": found}

    def _summary(self, session: Session, text: str) -> SessionSummary | None:
        """Get the summary of a session; None if the text, as JSON, occurs nowhere in it."""
        outline = {name: session[name] for name in SessionOutline.__annotations__}  # type: ignore[literal-required]
        seen = text in _searched([session["session_id"], session["task"], session["labels"]])
        records = calls = errors = 0
        milliseconds, last, done, problem = 0.0, None, False, None
        verdict: Verdict | None = None
        try:
            for shown, private in self._lines(session["session_id"]):
                kind = self._kinds[shown["kind"]]
                records += 1
                milliseconds += shown.get("duration_ms", 0)
                if kind.is_call:
                    calls, last = calls + 1, shown["function"]
                    errors += shown["error"] is not None
                done = (done or kind.answer(shown) is not None) and kind.goes_back_to(shown) is None
                verdict = recorded_verdict(shown, private)
                seen = seen or text in _searched([value for name, value in shown.items() if name not in _NOT_SAID])
        except StateDamagedError as error:
            problem = str(error)
        if not seen:
            return None
        return {  # type: ignore[return-value]
            **outline,
            "variant": variant_of(session),
            "records": records,
            "calls": calls,
            "errors": errors,
            "last_function": last,
            "duration_ms": round(milliseconds, 3),
            "done": done,
            "verdict": verdict,
            "problem": problem,
        }

    def _lines(self, session_id: str) -> Any:
        """Get both lines of each record, as JSON, in order; none of a session that was closed meanwhile."""
        after = -1
        while page := self._store.records(session_id, after, _RECORDS_AT_ONCE, _BYTES_AT_ONCE):
            for record in page:
                yield tuple(map(loads, self._records.read(session_id, record)))
            after = page[-1].index


def _searched(value: Any) -> str:
    """Get a value as it is searched: as JSON, without a difference between small letters and capitals."""
    return dumps(value).decode().casefold()
