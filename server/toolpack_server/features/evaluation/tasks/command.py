"""The command `toolpack-server evaluate`: evaluate sessions that have a task, and print pass rates.

The report goes to standard output. Progress and invalid rollouts go to standard error. The report doesn't count
rollouts with an invalid verdict. If any verdict is invalid, the command exits with status 1.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import IO, Any, Protocol, Self

import click

from toolpack_server.base.terminal import echo, printable
from toolpack_server.cli.local import look_at, look_options
from toolpack_server.cli.options import packs_options
from toolpack_server.cli.progress import progress
from toolpack_server.cli.requests import Send
from toolpack_server.cli.session_commands import label, whole_trace
from toolpack_server.features.evaluation.tasks.atif import atif
from toolpack_server.features.evaluation.tasks.attacks import Attacks
from toolpack_server.features.evaluation.tasks.export import FORMATS, participant_view
from toolpack_server.features.evaluation.tasks.pass_rates import rates, rates_table
from toolpack_server.features.evaluation.tasks.report import RunsPage
from toolpack_server.features.evaluation.tasks.review_page import lost_lines, place_of_loss, review_html
from toolpack_server.features.evaluation.tasks.summaries import is_rollout
from toolpack_server.features.evaluation.tasks.trajectories import trajectory, verdict_members
from toolpack_server.features.evaluation.tasks.variants import FalseAnswers, count_false_answers, variants_table
from toolpack_server.protocol.senders import AGENT

GROUP = "toolpack_server.evaluate"
"""The entry point group where other features register their `EvaluateExtra` classes."""

_PAGE_SESSIONS = 25  # max sessions that one request evaluates
_SESSION_MEMBERS = {"session_id", "labels", "variant", "problem"}  # fields copied from a summary to its verdict


class EvaluateExtra(Protocol):
    """An extension of the command, registered by another feature, that processes each evaluated session.

    Attributes:
        options: Options that the extension adds to the command.
    """

    options: Sequence[click.Option]

    @classmethod
    def begin(cls, options: dict[str, Any]) -> Self | None:
        """Remove the extension's own options from `options`. Return None if they don't request the extension."""

    async def add(self, send: Send, summary: Mapping[str, Any]) -> None:
        """Process the summary of an evaluated session, including its verdict.

        The command doesn't call this method for sessions that don't count as rollouts.
        """

    def end(self) -> None:
        """Finish after the last session."""


_EXTRAS: Sequence[type[EvaluateExtra]] = [point.load() for point in entry_points(group=GROUP)]


@click.command()
@look_options
@packs_options
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Evaluate only sessions with this label.")
@click.option(
    "--trajectories",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Write the trajectory of each session to this file, one JSON line each; - is standard output.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Format of the trajectories: chat completions, or the Agent Trajectory Interchange Format.  [default: openai]",
)
@click.option(
    "--participant",
    metavar="NAME",
    help="In sessions with participants, write the trajectories of this participant.  [default: agent]",
)
@click.option(
    "--html",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Write the console's runs page to this file, which you can open without a server.",
)
@click.option("--record", is_flag=True, help="Store each verdict as a record of its session.")
@click.option("--lost", is_flag=True, help="Also review failed rollouts, and count at which calls they were lost.")
@click.option(
    "--review",
    type=(str, click.File("w", encoding="utf-8", lazy=True)),
    metavar="SESSION FILE",
    help="Only write the review of this session to this HTML file.",
)
def evaluate(
    labels: tuple[str, ...],
    trajectories: IO[str] | None,
    form: str | None,
    participant: str | None,
    html: IO[str] | None,
    record: bool,
    lost: bool,
    review: tuple[str, IO[str]] | None,
    **where: Any,
) -> None:
    """Evaluate the sessions that have a task, and print their rates: passed, mean reward, pass^k and pass@k."""
    if participant and trajectories is None:
        raise click.UsageError("--participant selects the trajectories to write: also give --trajectories.")
    if form and trajectories is None:
        raise click.UsageError("--format is the format of trajectories: also give --trajectories.")
    all_labels, name = dict(map(label, labels)), participant or AGENT

    extras = [extra for kind in _EXTRAS if (extra := kind.begin(where)) is not None]

    async def look(send: Send) -> bool:
        """Write the review, or else the report and all requested files. Return whether any rollout is invalid."""
        if review is not None:
            review[1].write(await review_html(send, review[0], where["url"]))
            return False
        page = None if html is None else RunsPage(send, all_labels, where["url"])
        trajectory_format = form or FORMATS[0]
        invalid = await _evaluate(
            send, all_labels, trajectories, name, trajectory_format, page, extras, record=record, lost=lost
        )
        if page is not None and html is not None:
            html.write(await page.html())
        return invalid

    if look_at(look, **where):
        sys.exit(1)


evaluate.params += [option for extra in _EXTRAS for option in extra.options]


async def _evaluate(
    send: Send,
    labels: dict[str, str],
    file: IO[str] | None,
    participant: str,
    form: str,
    page: RunsPage | None,
    extras: Sequence[EvaluateExtra],
    *,
    record: bool,
    lost: bool,
) -> bool:
    """Evaluate the sessions page by page, print the report, and write the participant's trajectories.

    Return whether any rollout is invalid.
    """
    verdicts: list[dict[str, Any]] = []
    parents: dict[str, str] = {}
    inspections, without = 0, 0
    after: str | None = ""
    with progress("Evaluating", await _count(send, labels)) as advance:
        while after is not None:
            params = {"labels": labels, "after": after, "limit": _PAGE_SESSIONS, "evaluate": True, "record": record}
            summaries = await send("summarize_sessions", params)
            for summary in (each for each in summaries["sessions"] if "task" in each):
                advance(1)
                if not is_rollout(summary, labels):
                    inspections += 1
                    continue
                verdict = {**summary["verdict"], **{name: summary[name] for name in _SESSION_MEMBERS & summary.keys()}}
                if file is not None:
                    without += not await _write(file, send, verdict, participant, form)
                if page is not None:
                    await page.add({**summary, "verdict": verdict})
                for extra in extras:
                    await extra.add(send, summary)
                verdicts.append(verdict)
                if "parent" in summary:
                    parents[summary["session_id"]] = summary["parent"]["session_id"]
            after = summaries.get("next")
    ids = {verdict["session_id"] for verdict in verdicts}
    forks = sum(parent in ids for parent in parents.values())
    invalid = [verdict for verdict in verdicts if not verdict["valid"]]
    attacks = await Attacks.of(send, verdicts, parents)
    counted = [each for each in verdicts if each["session_id"] not in attacks.controls]
    await _print_tables(send, counted, attacks, to_stderr=file is not None and file.name == "-")
    if lost:
        places = await _places_of_loss(send, verdicts)
        echo("", *(lost_lines([*places.values()]) or ["No rollout failed."]), err=file is not None and file.name == "-")
        if page is not None:
            page.add_places(places)
    if without:
        note = (
            f"{without} of these {len(verdicts)} have no participant {participant!r}, so the file has no line for them."
        )
        echo("", note, err=True)
    _print_notes(forks, len(attacks.controls), inspections, invalid, len(verdicts))
    for extra in extras:
        extra.end()
    return bool(invalid)


async def _print_tables(send: Send, verdicts: Sequence[dict[str, Any]], attacks: Attacks, *, to_stderr: bool) -> None:
    """Print the rates of rollouts without rules, then the rates by variant, then the success of attacks."""
    clean = [each for each in verdicts if "variant" not in each]
    tables = []
    if clean or not any(each["valid"] for each in verdicts):
        tables.append(rates_table(rates(clean)))
    if len(clean) < len(verdicts):
        perturbed = [each for each in verdicts if each["valid"] and each["perturbed"]]
        answers = {each["session_id"]: await _false_answers(send, each) for each in perturbed}
        tables.append(variants_table(verdicts, answers))
    if attacks.rollouts:
        tables.append(attacks.table())
    echo(*"\n\n".join(tables).split("\n"), err=to_stderr)


async def _places_of_loss(send: Send, verdicts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Review the rollouts that failed. Return a description of where each rollout was lost, by session_id."""
    failed = [each["session_id"] for each in verdicts if each["valid"] and not each["passed"]]
    places: dict[str, str] = {}
    with progress("Reviewing", len(failed)) as advance:
        for session_id in failed:
            places[session_id] = await place_of_loss(send, session_id)
            advance(1)
    return places


async def _count(send: Send, labels: dict[str, str]) -> int:
    """Count the sessions that have a task."""
    count, after = 0, ""
    while page := await send("list_sessions", {"labels": labels, "after": after, "limit": 1000}):
        count, after = count + sum("task" in each for each in page), page[-1]["session_id"]
    return count


def _print_notes(forks: int, controls: int, inspections: int, invalid: Sequence[Mapping[str, Any]], count: int) -> None:
    """Print to standard error how many sessions are forks, controls or invalid, and how the report counts them."""
    if forks > controls:
        echo("", f"{forks - controls} of these {count} are forks of other sessions in this list.", err=True)
    if controls:
        echo("", f"{controls} of these {count} are controls of attacked sessions, not counted elsewhere.", err=True)
    if inspections:
        echo("", f"Forks that the console or a review created, not counted: {inspections}.", err=True)
    if invalid:
        echo("", f"{len(invalid)} of {count} rollouts are invalid and not counted:", err=True)
        for verdict in invalid:
            failure = verdict.get("failure") or {"kind": "unknown", "message": verdict.get("problem")}
            about = f"{verdict['session_id']} ({verdict['task']})"
            echo(f"  {about}: {failure['kind']}: {failure['message']}", err=True)


async def _false_answers(send: Send, verdict: dict[str, Any]) -> FalseAnswers:
    return count_false_answers(await whole_trace(send, verdict["session_id"], path=True))


async def _write(file: IO[str], send: Send, verdict: dict[str, Any], participant: str, form: str) -> bool:
    """Write a session's trajectory. Return False if the participant doesn't exist in the session.

    If the trajectory can't be read, mark the verdict as invalid, and return True.
    """
    try:
        line = await _line(send, verdict, participant, form)
    except click.ClickException as error:
        verdict.update({"problem": error.format_message(), **verdict, "valid": False})  # an earlier problem stays
        return True
    file.write("" if line is None else printable(json.dumps(line, ensure_ascii=False)) + "\n")
    return line is not None


async def _line(send: Send, verdict: dict[str, Any], participant: str, form: str) -> dict[str, Any] | None:
    """Return a session's trajectory as a participant saw it, or None if the session lacks the participant."""
    view = await participant_view(send, verdict["session_id"], participant, verdict["task"])
    if view is None:
        return None
    if form == "atif":
        return atif(view.session, view.messages, view.tools, {"task": verdict["task"], **verdict_members(verdict)})
    return trajectory(verdict, view.messages, view.tools)
