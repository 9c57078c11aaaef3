"""The HTML file of `evaluate --review`: the review of one rollout, with the console's styles and without a script.

Everything from the session is escaped, and the Content-Security-Policy allows only the file's own styles.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import click

from toolpack_server.base.terminal import printable
from toolpack_server.cli.requests import Send
from toolpack_server.cli.session_commands import whole_trace
from toolpack_server.features.evaluation.tasks.report import CONSOLE, content_hash
from toolpack_server.features.evaluation.tasks.results import Review, SolutionCall

MAX_CHARACTERS = 200
"""Max characters of a value on the page. Longer values are cut."""

MARKS = {
    "solution": ("!", "good", "as in the solution"),
    "own": ("=", "soft", "another way than the solution; could still win"),
    "read": ("·", "soft", "reads"),
    "failed": ("x", "soft", "failed"),
    "lost": ("??", "bad", "the losing call"),
    "worse": ("?", "bad", "the value fell"),
    "late": ("·", "soft", "could no longer win"),
    "unknown": ("·", "soft", "the server no longer stores this version"),
    "end": ("#", "soft", ""),
}
"""For each mark of a record: its sign, its color class and its description. `console/review.js` uses the same."""

_WIDTH, _HEIGHT = 800, 120  # size of the graph
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src {hash}; base-uri 'none'">
<title>Review of {short}</title>
<style>{style}</style>
</head>
<body>
<header class="top"><span class="brand">Toolpack Server</span> <span class="hint">Review</span></header>
<main>
<h1>Review: {task}</h1>
<p class="facts"><span>Session {session}</span><span>{outcome}</span></p>
<p class="said{tone}">{summary}</p>
{sibling}{graph}
<p class="hint">The value is the best reward that a known continuation reaches: the rest of the solution, the same
without calls that were made with other arguments, the solution again from its first missing call on, or no further
call. If no solution wins, the calls of a rollout that passed serve as the solution. The value is a lower bound: a
better agent may know another way.</p>
<h2>Calls</h2>
<ol class="review">{calls}</ol>
{line}
{checks}
</main>
</body>
</html>
"""


async def review_html(send: Send, session_id: str, url: str | None) -> str:
    """Review a rollout, and return the HTML file that shows the review.

    Args:
        send: Sends a request to the server, or to the service in this process.
        session_id: The session of the rollout.
        url: The server's URL, for links to its console. None: the service runs in this process, so there are no links.
    """
    review: Review = await send("review_session", {"session_id": session_id, "record": True})
    trace = {record["index"]: record for record in await whole_trace(send, session_id, path=False)}
    page = _Page(review, trace, url and url.rstrip("/"))
    return "\n".join(map(printable, page.html().split("\n")))


class _Page:
    """Renders the page of one review.

    Args:
        trace: The records of the rollout, by index.
    """

    def __init__(self, review: Review, trace: Mapping[int, Any], url: str | None) -> None:
        self._review, self._trace, self._url = review, trace, url

    def html(self) -> str:
        """Return the page. The solution's missing calls are listed before the losing call, or before the answer."""
        review = self._review
        style = "".join((CONSOLE / name).read_text(encoding="utf-8") for name in ("style.css", "runs.css"))
        session_id, passed = review["session_id"], review["passed"]
        verdict = "passed" if passed else "failed"
        reward = "no reward" if review["reward"] is None else f"reward {review['reward']:g}"
        rows = [self._row(entry) for entry in review["records"]]
        missing = [
            _call(call, "", "+", "not made before" if "lost" in review else "never made", " absent")
            for call in review["never_called"]
        ]
        stops = [number for number, entry in enumerate(review["records"]) if entry["mark"] in {"lost", "end"}]
        at = stops[0] if missing and stops else len(rows)
        return _PAGE.format(
            hash=content_hash(style),
            style=style,
            short=escape(session_id[:8]),
            task=escape(review["task"]),
            session=self._link(session_id, {}, session_id[:8]),
            outcome=f'<span class="tag {"good" if passed else "bad"}">{verdict}</span> {reward}',
            tone=" good" if passed else "",
            summary=escape(review["summary"]),
            sibling=self._sibling(),
            graph=self._graph(),
            calls="".join([*rows[:at], *missing, *rows[at:]]),
            line=self._line(),
            checks=self._checks(),
        )

    def _link(self, session_id: str, query: Mapping[str, Any], text: str) -> str:
        if self._url is None:
            return f"<code>{escape(text)}</code>"
        search = "&".join(f"{name}={value}" for name, value in query.items())
        address = f"{self._url}/console/#/sessions/{session_id}{'?' if search else ''}{search}"
        return f'<a href="{escape(address)}">{escape(text)}</a>'

    def _row(self, entry: Any) -> str:
        """Return a reviewed call or answer as a row of HTML."""
        record, (sign, tone, words) = self._trace[entry["index"]], MARKS[entry["mark"]]
        if entry["mark"] == "solution" and "sibling" in self._review:
            words = "as in the rollout that passed"
        is_call = "function" in record
        shown = _arguments(record["kwargs"]) if is_call else _value(record["answer"])
        name = record["function"] if is_call else "answer"
        result = _value(record["error"] or record["result"]) if is_call else ""
        before, after = map(_number, (entry.get("before"), entry.get("after")))
        moved = before != after or entry["mark"] in {"solution", "own", "lost"}
        return _entry(
            str(entry["index"]),
            sign,
            tone,
            self._link(self._review["session_id"], {"record": entry["index"]}, name),
            words if is_call else "the losing answer" if entry["mark"] == "lost" else "",
            [shown, result and f"→ {result}"],
            f"{before} → {after}" if moved else after,
            " lost" if entry["mark"] == "lost" else "",
        )

    def _sibling(self) -> str:
        sibling = self._review.get("sibling")
        return f"<p>The rollout that passed: {self._link(sibling, {}, sibling[:8])}.</p>" if sibling else ""

    def _line(self) -> str:
        """Return the continuation that would have won, as HTML, or "" if none is known."""
        line = self._review.get("line")
        if line is None:
            return ""
        calls = [_call(call, str(number + 1), "!", "", "") for number, call in enumerate(line["calls"])]
        won = f'<span class="tag good">reward {line["reward"]:g}</span>'
        answer = _entry(str(len(calls) + 1), "#", "good", "Answer", "", [_value(line["answer"])], won, "")
        fork = line.get("fork")
        played = f"<p>Played in a fork: {self._link(fork, {}, fork[:8])}.</p>" if fork else ""
        rows = "".join([*calls, answer])
        return f'<h2>What would have won, from version {line["version"]}</h2>{played}<ol class="review">{rows}</ol>'

    def _graph(self) -> str:
        """Return a step graph of the value after each call, as HTML. For fewer than two calls, return ""."""
        values = [
            entry.get("after") or 0.0 for entry in self._review["records"] if "function" in self._trace[entry["index"]]
        ]
        if len(values) < 2:  # noqa: PLR2004 - a line needs two points
            return ""
        top = max(1.0, *values)
        width = _WIDTH / len(values)
        path = " ".join(
            f"{'L' if at else 'M'}{at * width:.1f} {_y(value, top):.1f} L{(at + 1) * width:.1f} {_y(value, top):.1f}"
            for at, value in enumerate(values)
        )
        description = ", ".join(f"call {at}: {value:.2f}" for at, value in enumerate(values[:100]))
        return (
            '<figure class="chart"><figcaption>Value after each call</figcaption>'
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{description}</title>'
            f'<g class="series0"><path d="{path}"/></g></svg></figure>'
        )

    def _checks(self) -> str:
        """Return a table of the checks at each version, as HTML, or "" if there are no checks."""
        checks, steps = self._review["checks"], [step for step in self._review["steps"] if step["checks"]]
        if not checks or not steps:
            return ""
        names = [f"v{step['version']}" if step["version"] else "start" for step in steps]
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        fell = next(
            (
                number + 1
                for number, (step, after) in enumerate(pairwise(steps))
                if "lost" in self._review and (after.get("value") or 0.0) < (step.get("value") or 0.0)
            ),
            None,
        )
        rows = ""
        for index, check in enumerate(checks):
            states = [index < len(step["checks"]) and step["checks"][index]["passed"] for step in steps]
            cells = "".join(
                f"<td{_turned(number == fell and not ok and states[number - 1])}>"
                f'<span class="{"passes" if ok else "fails"}">{"✓" if ok else "✗"}</span></td>'
                for number, ok in enumerate(states)
            )
            word, tone = ("passed", "good") if check["passed"] else ("failed", "bad")
            name = f'{escape(check["name"])} <span class="hint">{escape(check["detail"][:MAX_CHARACTERS])}</span>'
            rows += f'<tr><th scope="row">{name}</th>{cells}<td><span class="tag {tone}">{word}</span></td></tr>'
        return (
            '<h2>Checks at each version</h2><div class="scroll" tabindex="0"><table class="turns">'
            f'<thead><tr><th scope="col">Check</th>{head}<th scope="col">end</th></tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )


def lost_lines(places: Sequence[str]) -> list[str]:
    """Count the places where failed rollouts were lost. Return a line for each place, the most frequent first."""
    counts = sorted(((places.count(place), place) for place in {*places}), key=lambda each: (-each[0], each[1]))
    return [f"{count} of {len(places)} failures: {place}" for count, place in counts]


async def place_of_loss(send: Send, session_id: str) -> str:
    """Review a failed rollout and store the review. Return where it was lost, or why there is no review."""
    try:
        review: Review = await send("review_session", {"session_id": session_id, "record": True})
    except click.ClickException as error:
        return f"no review: {error.format_message()}"
    return review.get("lost_at", "passed")


def _turned(is_turned: bool) -> str:
    return ' class="turned"' if is_turned else ""


def _y(value: float, top: float) -> float:
    return _HEIGHT - 4 - value / top * (_HEIGHT - 8)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _arguments(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {_value(value)}" for name, value in kwargs.items())


def _call(call: SolutionCall, at: str, sign: str, words: str, kind: str) -> str:
    return _entry(at, sign, "good", escape(call["function"]), words, [_arguments(call["kwargs"])], "", kind)


def _entry(at: str, sign: str, tone: str, name: str, words: str, lines: Sequence[str], values: str, kind: str) -> str:
    """Return a row of a list of calls as HTML. `name` and `values` are HTML; `words` and `lines` are escaped here."""
    shown = "".join(f'<span class="args">{escape(line)}</span>' for line in lines if line)
    return (
        f'<li class="row{kind}"><span class="at">{at}</span><span class="tag {tone}">{sign}</span>'
        f'<span class="call"><strong>{name}</strong> <span class="hint">{escape(words)}</span>{shown}</span>'
        f'<span class="values">{values}</span></li>'
    )
