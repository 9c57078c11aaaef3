"""Summaries: what has happened in each of many sessions, in a few words, and how often their tasks were done.

A summary is read off the records and renews nothing; an evaluator runs only if that is asked for. An answer
takes a part of a second, or with evaluators about as long as one call may; whoever wants more sessions asks again.
Sessions that the console has made to look at another one are no rollouts.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from toolpack_server.base.errors import OverloadedError, RequestError, SessionNotFoundError, StateDamagedError
from toolpack_server.features.evaluation.tasks.pass_rates import rates
from toolpack_server.features.evaluation.tasks.results import SessionSummaries, SessionSummary, TaskRate, Verdict
from toolpack_server.features.evaluation.tasks.service import Tasks
from toolpack_server.features.evaluation.tasks.summary_order import BY_STORE, Order, in_order
from toolpack_server.features.evaluation.tasks.validity import evaluation_failure, no_reward
from toolpack_server.features.evaluation.tasks.verdicts import recorded_verdict
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.protocol.omission import if_set
from toolpack_server.protocol.results import SessionOutline
from toolpack_server.rpc.method import App
from toolpack_server.sessions.reader import SessionQuery
from toolpack_server.stores.history import fitting

T = TypeVar("T")

OWN_RULES = "rules"  # stands for the variant of sessions that have rules of their own only
CONSOLE_LABEL = "console"  # which the console's forks have
_AT_ONCE = 50  # sessions that are listed
_RECORDS_AT_ONCE = 200
_BYTES_AT_ONCE = 2**20
_SECONDS = 0.5
_Part = tuple[list[SessionSummary], str | None]  # some, and the one after which to go on, if any
_NOT_SAID = {"index", "kind", "version", "state", "started_at", "duration_ms", "place"}  # nobody looks for these


class Summaries:
    def __init__(self, app: App) -> None:
        self._tasks = app.feature(Tasks)
        self._sessions = app.sessions
        self._store = app.context.store
        self._records = app.context.records
        self._kinds = app.context.record_kinds
        self._settings = app.settings

    async def page(
        self, query: SessionQuery, text: str, order: Order, *, total: bool, evaluate: bool, record: bool
    ) -> SessionSummaries:
        """Get the next summaries; see `methods.SummarizeSessions`.

        Raises:
            OverloadedError: None could be evaluated for now.
        """
        if order not in BY_STORE:
            return await self._sorted(query, text, order)
        count = None
        if total:
            count = await self._compute(lambda: sum(1 for _ in self._all(query, _searched(text)[1:-1])), query)
        found, after = await (self._evaluated(query, text, record=record) if evaluate else self._read(query, text))
        return {"sessions": found, "rates": _rates(found, query.labels), "next": if_set(after), "total": if_set(count)}

    async def _sorted(self, query: SessionQuery, text: str, order: Order) -> SessionSummaries:
        def read() -> tuple[list[bytes], int, int]:
            texts, total = in_order(self._all(query, _searched(text)[1:-1]), order, query.after)
            return fitting(texts[: query.limit], len, self._settings.max_list_bytes), len(texts), total

        texts, left, total = await self._compute(read, query)
        found: list[SessionSummary] = [*map(loads, texts)]
        after = found[-1]["session_id"] if len(found) < left else None
        return {"sessions": found, "rates": _rates(found, query.labels), "next": if_set(after), "total": total}

    async def _compute(self, work: Callable[[], T], query: SessionQuery) -> T:
        return await self._sessions.compute(work, query.owner or "", "summaries")

    async def _read(self, query: SessionQuery, text: str) -> _Part:
        searched = _searched(text)[1:-1]
        return await self._compute(lambda: self._page(query, searched), query)

    def _all(self, query: SessionQuery, text: str) -> Iterator[SessionSummary]:
        """Get the summaries of all sessions that are like this, wherever a page begins."""
        page = replace(query, after="", limit=_AT_ONCE)
        while listed := self._sessions.heavy_reader.list_sessions(page):
            yield from filter(None, (self._summary(session, text) for session in listed))
            page = replace(page, after=listed[-1]["session_id"])

    async def _evaluated(self, query: SessionQuery, text: str, *, record: bool) -> _Part:
        found: list[SessionSummary] = []
        ends, room = time.monotonic() + self._settings.timeout_seconds, self._settings.max_list_bytes
        after = query.after
        while True:
            limit = min(query.limit - len(found), _AT_ONCE)
            part, following = await self._read(replace(query, after=after, limit=limit), text)
            for summary in part:
                if found and (time.monotonic() > ends or room < 0):
                    return found, after
                try:
                    if summary["task"] is not None and _is_rollout(summary, query.labels):
                        await self._evaluate(summary, query.owner, record=record)
                except OverloadedError:
                    if not found:
                        raise
                    return found, after
                except SessionNotFoundError:  # closed meanwhile
                    continue
                found.append(summary)
                room -= len(dumps(summary))
                after = summary["session_id"]
            if following is None or len(found) == query.limit or time.monotonic() > ends:
                return found, following
            after = following

    async def _evaluate(self, summary: SessionSummary, owner: str | None, *, record: bool) -> None:
        """Evaluate a session, and put the verdict, or why there is none, into its summary."""
        session_id = summary["session_id"]
        try:
            verdict = await self._tasks.evaluate(session_id, owner, record=record)
        except (OverloadedError, SessionNotFoundError):
            raise
        except RequestError as error:
            failure = evaluation_failure(error)
            summary["problem"] = summary["problem"] or if_set(None if failure else str(error))
            verdict = no_reward(summary["task"], summary["version"], failure)
        summary["verdict"] = verdict

    def _page(self, query: SessionQuery, text: str) -> _Part:
        found: list[SessionSummary] = []
        reader, room, ends = self._sessions.heavy_reader, self._settings.max_list_bytes, time.monotonic() + _SECONDS
        after = query.after
        while page := reader.list_sessions(replace(query, after=after, limit=_AT_ONCE)):
            for session in page:
                summary = self._summary(session, text)
                if summary is not None:
                    room -= len(dumps(summary))
                    if room < 0 and found:
                        return found, after
                    found.append(summary)
                after = session["session_id"]
                if len(found) == query.limit or time.monotonic() > ends:
                    return found, after
        return found, None

    def _summary(self, session: Mapping[str, Any], text: str) -> SessionSummary | None:
        """Get the summary of a session; None if the text, as JSON, occurs nowhere in it."""
        outline = {name: session[name] for name in (*SessionOutline.__annotations__, "task")}
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
                done = (done or kind.ends(shown)) and kind.goes_back_to(shown) is None
                verdict = recorded_verdict(shown, private)
                seen = seen or text in _searched([value for name, value in shown.items() if name not in _NOT_SAID])
        except StateDamagedError as error:
            problem = str(error)
        if not seen:
            return None
        return {  # type: ignore[return-value]
            **outline,
            "variant": _variant_of(session),
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


def unless_known(found: SessionSummaries, digest: str) -> SessionSummaries:
    """Get an answer with its digest; without all else, if that is the one that is known: whoever polls sends it."""
    now = hashlib.blake2b(dumps(found), digest_size=12).hexdigest()
    return {"sessions": [], "rates": [], "digest": now} if now == digest else {**found, "digest": now}


def _variant_of(session: Mapping[str, Any]) -> str | None:
    """Get the variant of its task that a session has; `rules` if it has rules of its own only."""
    perturbations = session.get("perturbations")  # it isn't there without that feature
    return None if perturbations is None else perturbations.get("variant") or OWN_RULES


def _is_rollout(summary: SessionSummary, labels: Mapping[str, str]) -> bool:
    return CONSOLE_LABEL not in summary["labels"] or CONSOLE_LABEL in labels


def _rates(summaries: list[SessionSummary], labels: Mapping[str, str]) -> list[TaskRate]:
    """Get what the verdicts come to that are valid."""
    rollouts = (each for each in summaries if each["verdict"] and _is_rollout(each, labels))
    return [
        {
            "task": rate.task,
            "variant": if_set(rate.variant),
            "rollouts": rate.rollouts,
            "passed": rate.passed,
            "mean_reward": rate.mean_reward,
        }
        for rate in rates({**each["verdict"], "variant": each["variant"]} for each in rollouts)
    ]


def _searched(value: Any) -> str:
    """Get a value as it is searched: as JSON, without a difference between small letters and capitals."""
    return dumps(value).decode().casefold()
