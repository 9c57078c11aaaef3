"""`toolpack-server evaluate`: evaluates sessions that have a task, and says how often tasks were done.

The report goes to standard output, progress and invalid rollouts to standard error. An invalid rollout, whose
verdict says nothing of the agent, counts nowhere, and makes the exit status 1.
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
from toolpack_server.features.evaluation.tasks.export import FORMATS, told_to
from toolpack_server.features.evaluation.tasks.pass_rates import rates, table
from toolpack_server.features.evaluation.tasks.report import RunsPage
from toolpack_server.features.evaluation.tasks.summaries import CONSOLE_LABEL
from toolpack_server.features.evaluation.tasks.trajectories import said, trajectory
from toolpack_server.features.evaluation.tasks.variants import LostAnswers, losses, variants_table
from toolpack_server.protocol.senders import AGENT

GROUP = "toolpack_server.evaluate"
"""The group of entry points that name classes like `EvaluateExtra`."""

_AT_ONCE = 25  # sessions
_OF_SESSION = {"session_id", "labels", "variant", "problem"}  # what goes with a verdict


class EvaluateExtra(Protocol):
    """What another feature makes of the sessions that are evaluated.

    Attributes:
        options: More options of the command.
    """

    options: Sequence[click.Option]

    @classmethod
    def begin(cls, given: dict[str, Any]) -> Self | None:
        """Take its own options out of those that were given; None if they ask for nothing."""

    async def add(self, send: Send, summary: Mapping[str, Any]) -> None:
        """Take a session that counts, with the verdict on it."""

    def end(self) -> None:
        """Called after the last one."""


_ADDITIONS: Sequence[type[EvaluateExtra]] = [point.load() for point in entry_points(group=GROUP)]


@click.command()
@look_options
@packs_options
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only sessions with this label.")
@click.option(
    "--trajectories",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Write a line of JSON for each session to this file; - is standard output.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="How to write them: as chat completions, or in the Agent Trajectory Interchange Format.  [default: openai]",
)
@click.option(
    "--participant",
    metavar="NAME",
    help="Whose trajectories to write, in sessions with participants.  [default: agent]",
)
@click.option(
    "--html",
    type=click.File("w", encoding="utf-8", lazy=True),
    metavar="FILE",
    help="Write the console's page of runs to this file, which needs no server.",
)
@click.option("--record", is_flag=True, help="Keep each verdict as a record of its session.")
def evaluate(
    labels: tuple[str, ...],
    trajectories: IO[str] | None,
    form: str | None,
    participant: str | None,
    html: IO[str] | None,
    record: bool,
    **where: Any,
) -> None:
    """Evaluate the sessions that have a task: passed, mean reward, pass^k and pass@k."""
    if participant and trajectories is None:
        raise click.UsageError("--participant says whose trajectories are written: give --trajectories, too.")
    if form and trajectories is None:
        raise click.UsageError("--format says how trajectories are written: give --trajectories, too.")
    wanted, whose = dict(map(label, labels)), participant or AGENT

    additions = [begun for kind in _ADDITIONS if (begun := kind.begin(where)) is not None]

    async def look(send: Send) -> bool:
        page = None if html is None else RunsPage(send, wanted, where["url"])
        how = form or FORMATS[0]
        invalid = await _evaluate(send, wanted, trajectories, whose, how, page, additions, record=record)
        if page is not None and html is not None:
            html.write(await page.html())
        return invalid

    if look_at(look, **where):
        sys.exit(1)


evaluate.params += [option for addition in _ADDITIONS for option in addition.options]


async def _evaluate(
    send: Send,
    labels: dict[str, str],
    file: IO[str] | None,
    whose: str,
    form: str,
    page: RunsPage | None,
    additions: Sequence[EvaluateExtra],
    *,
    record: bool,
) -> bool:
    """Evaluate, print, and say whether a rollout is invalid; `whose` trajectories are written to the file."""
    verdicts: list[dict[str, Any]] = []
    parents: list[str] = []
    left_out, without = 0, 0
    after: str | None = ""
    with progress("Evaluating", await _count(send, labels)) as go_on:
        while after is not None:
            asked = {"labels": labels, "after": after, "limit": _AT_ONCE, "evaluate": True, "record": record}
            found = await send("summarize_sessions", asked)
            for summary in (each for each in found["sessions"] if "task" in each):
                go_on(1)
                if CONSOLE_LABEL in summary["labels"] and CONSOLE_LABEL not in labels:
                    left_out += 1
                    continue
                verdict = {**summary["verdict"], **{name: summary[name] for name in _OF_SESSION & summary.keys()}}
                if file is not None:
                    without += not await _write(file, send, verdict, whose, form)
                if page is not None:
                    await page.add({**summary, "verdict": verdict})
                for addition in additions:
                    await addition.add(send, summary)
                verdicts.append(verdict)
                parents += [summary["parent"]["session_id"]] if "parent" in summary else []
            after = found.get("next")
    ids = {verdict["session_id"] for verdict in verdicts}
    forks = sum(parent in ids for parent in parents)
    invalid = [verdict for verdict in verdicts if not verdict["valid"]]
    clean, to_stderr = [each for each in verdicts if "variant" not in each], file is not None and file.name == "-"
    if clean or len(verdicts) == len(invalid):
        echo(*table(rates(clean)).split("\n"), err=to_stderr)
    if len(clean) < len(verdicts):
        lost = {
            each["session_id"]: await _losses(send, each) for each in verdicts if each["valid"] and each["perturbed"]
        }
        echo(*[""] * bool(clean), *variants_table(verdicts, lost).split("\n"), err=to_stderr)
    if without:
        there = f"{without} of these {len(verdicts)} have no participant {whose!r}: the file has no line of theirs."
        echo("", there, err=True)
    _tell_asides(forks, left_out, invalid, len(verdicts))
    for addition in additions:
        addition.end()
    return bool(invalid)


async def _count(send: Send, labels: dict[str, str]) -> int:
    """Count the sessions that have a task."""
    count, after = 0, ""
    while some := await send("list_sessions", {"labels": labels, "after": after, "limit": 1000}):
        count, after = count + sum("task" in each for each in some), some[-1]["session_id"]
    return count


def _tell_asides(forks: int, left_out: int, invalid: Sequence[Mapping[str, Any]], count: int) -> None:
    if forks:
        echo("", f"{forks} of these {count} are forks of others among them.", err=True)
    if left_out:
        echo("", f"{left_out} made in the console, to look at others, count nowhere.", err=True)
    if invalid:
        echo("", f"{len(invalid)} of {count} rollouts are invalid, and count nowhere:", err=True)
        for verdict in invalid:
            failure = verdict.get("failure") or {"kind": "unknown", "message": verdict.get("problem")}
            about = f"{verdict['session_id']} ({verdict['task']})"
            echo(f"  {about}: {failure['kind']}: {failure['message']}", err=True)


async def _losses(send: Send, verdict: dict[str, Any]) -> LostAnswers:
    return losses(await whole_trace(send, verdict["session_id"], path=True))


async def _write(file: IO[str], send: Send, verdict: dict[str, Any], whose: str, form: str) -> bool:
    """Write a session's trajectory, and say whether it has this participant; one that can't be had is invalid."""
    try:
        line = await _line(send, verdict, whose, form)
    except click.ClickException as error:
        verdict.update({"problem": error.format_message(), **verdict, "valid": False})
        return True
    file.write("" if line is None else printable(json.dumps(line, ensure_ascii=False)) + "\n")
    return line is not None


async def _line(send: Send, verdict: dict[str, Any], whose: str, form: str) -> dict[str, Any] | None:
    """Get a session's trajectory as a participant has seen it; None if the session doesn't have this participant."""
    told = await told_to(send, verdict["session_id"], whose, verdict["task"])
    if told is None:
        return None
    if form == "atif":
        return atif(told.session, told.messages, told.tools, {"task": verdict["task"], **said(verdict)})
    return trajectory(verdict, told.messages, told.tools)
