"""Summaries of many sessions: counts of their records, their verdicts, and the pass rates of their tasks.

A summary is computed from the session's records, and reading them doesn't renew the session's TTL. Evaluators run only
if the request sets `evaluate`. A page ends after half a second, or with `evaluate` after the deadline of a call. The
client then requests the next page. Forks created by the console or a review don't count as rollouts.
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
from toolpack_server.features.evaluation.tasks.summary_order import BY_RECORDS, BY_STORE, Order, sort_summaries
from toolpack_server.features.evaluation.tasks.validity import evaluation_failure, no_reward
from toolpack_server.features.evaluation.tasks.verdicts import recorded_verdict
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.protocol.omission import if_set
from toolpack_server.protocol.results import SessionOutline
from toolpack_server.rpc.method import App
from toolpack_server.sessions.reader import SessionQuery
from toolpack_server.stores.history import fitting

T = TypeVar("T")

OWN_RULES = "rules"  # shown as the variant of sessions with perturbation rules but without a variant
REVIEW_LABEL = "review"
"""The label that marks the forks of a review. Its value is the session_id of the reviewed rollout."""

_CONSOLE_LABEL = "console"  # the label that marks sessions created by the console to inspect another session
_PAGE_SESSIONS = 50  # max sessions in one read of the store
_PAGE_RECORDS = 200
_PAGE_BYTES = 2**20
_MAX_SECONDS = 0.5  # time limit of a page without evaluation
_Page = tuple[list[SessionSummary], str | None]  # summaries, and where the next page begins: after this session_id
_UNSEARCHED_FIELDS = {"index", "kind", "version", "state", "started_at", "duration_ms", "path_index"}


class Summaries:
    """Computes the pages of summaries that `summarize_sessions` returns."""

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
        """Return the next page of summaries. `methods.SummarizeSessions` describes the parameters.

        Raises:
            OverloadedError: The server is too busy to evaluate even the first session.
        """
        if order not in BY_STORE:
            return await self._sorted(query, text, order)
        count = None
        if total:
            count = await self._compute(lambda: sum(1 for _ in self._all(query, text)), query)
        page, after = await (self._evaluated(query, text, record=record) if evaluate else self._read(query, text))
        return {"sessions": page, "rates": _rates(page, query.labels), "next": if_set(after), "total": if_set(count)}

    async def _sorted(self, query: SessionQuery, text: str, order: Order) -> SessionSummaries:
        """Return a page in an order that requires reading all sessions.

        If the order doesn't depend on records, only the summaries of this page are computed.
        """
        by_record = order.removeprefix("-") in BY_RECORDS

        def read() -> tuple[list[SessionSummary], int, int]:
            unsorted = self._summaries(query, text) if by_record else self._all(query, text)  # all pages
            texts, total = sort_summaries(unsorted, order, query.after)
            entries = map(loads, texts[: query.limit])
            summaries = entries if by_record else filter(None, (self._summary(outline, "") for outline in entries))
            return fitting(summaries, lambda each: len(dumps(each)), self._settings.max_list_bytes), len(texts), total

        page, left, total = await self._compute(read, query)
        after = page[-1]["session_id"] if len(page) < left else None
        return {"sessions": page, "rates": _rates(page, query.labels), "next": if_set(after), "total": total}

    async def _compute(self, work: Callable[[], T], query: SessionQuery) -> T:
        return await self._sessions.compute(work, query.owner or "", "summaries")

    async def _read(self, query: SessionQuery, text: str) -> _Page:
        searched = _search_form(text)[1:-1]  # removes the quotes
        return await self._compute(lambda: self._page(query, searched), query)

    def _all(self, query: SessionQuery, text: str) -> Iterator[Mapping[str, Any]]:
        """Yield outlines of the matching sessions on all pages. Records are read only to search them for a text."""
        searched = _search_form(text)[1:-1]
        return (each for each in self._outlines(query) if not searched or self._summary(each, searched) is not None)

    def _summaries(self, query: SessionQuery, text: str) -> Iterator[SessionSummary]:
        searched = _search_form(text)[1:-1]
        return filter(None, (self._summary(each, searched) for each in self._outlines(query)))

    def _outlines(self, query: SessionQuery) -> Iterator[Mapping[str, Any]]:
        page = replace(query, after="", limit=_PAGE_SESSIONS)
        while listed := self._sessions.heavy_reader.list_sessions(page):
            yield from map(_outline, listed)
            page = replace(page, after=listed[-1]["session_id"])

    async def _evaluated(self, query: SessionQuery, text: str, *, record: bool) -> _Page:
        """Return a page of summaries with new verdicts. It ends early at the time limit or the size limit.

        Even then it contains at least one session, so that a client that requests page after page comes to the end.
        """
        page: list[SessionSummary] = []
        ends, room = time.monotonic() + self._settings.timeout_seconds, self._settings.max_list_bytes
        after = query.after
        while True:
            limit = min(query.limit - len(page), _PAGE_SESSIONS)
            summaries, following = await self._read(replace(query, after=after, limit=limit), text)
            for summary in summaries:
                if page and (time.monotonic() > ends or room < 0):
                    return page, after
                try:
                    if summary["task"] is not None and is_rollout(summary, query.labels):
                        await self._evaluate(summary, query.owner, record=record)
                except OverloadedError:
                    if not page:
                        raise
                    return page, after
                except SessionNotFoundError:  # the session was closed after it was listed
                    continue
                page.append(summary)
                room -= len(dumps(summary))
                after = summary["session_id"]
            if following is None or len(page) == query.limit or time.monotonic() > ends:
                return page, following
            after = following

    async def _evaluate(self, summary: SessionSummary, owner: str | None, *, record: bool) -> None:
        """Evaluate a session and add the verdict to its summary. If the evaluation fails, add an invalid verdict."""
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

    def _page(self, query: SessionQuery, text: str) -> _Page:
        """Return a page of summaries without evaluation. It ends early at the time limit or the size limit."""
        page: list[SessionSummary] = []
        reader, room, ends = self._sessions.heavy_reader, self._settings.max_list_bytes, time.monotonic() + _MAX_SECONDS
        after = query.after
        while sessions := reader.list_sessions(replace(query, after=after, limit=_PAGE_SESSIONS)):
            for session in sessions:
                summary = self._summary(_outline(session), text)
                if summary is not None:
                    room -= len(dumps(summary))
                    if room < 0 and page:
                        return page, after
                    page.append(summary)
                after = session["session_id"]
                if len(page) == query.limit or time.monotonic() > ends:
                    return page, after
        return page, None

    def _summary(self, outline: Mapping[str, Any], text: str) -> SessionSummary | None:
        """Return the summary of a session, or None if the search text occurs nowhere in the session.

        Args:
            outline: The result of `_outline`.
            text: The search text in the form of `_search_form`, without quotes. "" occurs in every session.
        """
        matches = text in _search_form([outline["session_id"], outline["task"], outline["labels"]])
        records = calls = errors = 0
        milliseconds, last, done, problem = 0.0, None, False, None
        verdict: Verdict | None = None
        try:
            for shown, private in self._lines(outline["session_id"]):
                kind = self._kinds[shown["kind"]]
                records += 1
                milliseconds += shown.get("duration_ms", 0)
                if kind.is_call:
                    calls, last = calls + 1, shown["function"]
                    errors += shown["error"] is not None
                done = (done or kind.ends(shown)) and kind.goes_back_to(shown) is None  # a reset continues the session
                verdict = recorded_verdict(shown, private)  # only a verdict in the last record counts
                values = [value for name, value in shown.items() if name not in _UNSEARCHED_FIELDS]
                matches = matches or text in _search_form(values)
        except StateDamagedError as error:
            problem = str(error)
        if not matches:
            return None
        return {  # type: ignore[return-value]
            **outline,
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
        """Yield the public and the private line of each record, in order. For a closed session, yield nothing."""
        after = -1
        while page := self._store.records(session_id, after, _PAGE_RECORDS, _PAGE_BYTES):
            for record in page:
                yield tuple(map(loads, self._records.read(session_id, record)))
            after = page[-1].index


def omit_if_known(page: SessionSummaries, digest: str) -> SessionSummaries:
    """Return a page with its digest. Omit the sessions if the page's digest equals `digest`.

    A client that polls sends the digest of its last page, so it gets the sessions only if they have changed.
    """
    new_digest = hashlib.blake2b(dumps(page), digest_size=12).hexdigest()
    if new_digest == digest:
        return {"sessions": [], "rates": [], "digest": new_digest}
    return {**page, "digest": new_digest}


def _outline(session: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a session's description that its summary also contains.

    The full description can include large rules and events. So only the outline is kept in memory while sessions are
    sorted.
    """
    outline = {name: session[name] for name in (*SessionOutline.__annotations__, "task")}
    return {**outline, "variant": _variant_of(session)}


def _variant_of(session: Mapping[str, Any]) -> str | None:
    """Return a session's variant, `rules` if it has rules but no variant, or None if it has no rules."""
    perturbations = session.get("perturbations")  # missing if the server has no perturbations feature
    return None if perturbations is None else perturbations.get("variant") or OWN_RULES


def is_rollout(session: Mapping[str, Any], selected: Mapping[str, str]) -> bool:
    """Return whether a session counts as a rollout.

    A session created by the console or a review doesn't count, unless the client selected sessions by the label that
    marks these sessions.

    Args:
        selected: The labels that the client selected sessions by.
    """
    labels, parent = session["labels"], session.get("parent")
    made_by: set[str] = {_CONSOLE_LABEL} & labels.keys()
    if parent and labels.get(REVIEW_LABEL) == parent["session_id"]:
        made_by.add(REVIEW_LABEL)
    return made_by <= selected.keys()


def _rates(summaries: list[SessionSummary], labels: Mapping[str, str]) -> list[TaskRate]:
    """Return the pass rates of the rollouts with valid verdicts."""
    rollouts = (each for each in summaries if each["verdict"] and is_rollout(each, labels))
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


def _search_form(value: Any) -> str:
    """Return a value as case-folded JSON, in the form in which texts are searched.

    If the value is a string, `[1:-1]` removes the quotes around it.
    """
    return dumps(value).decode().casefold()
