"""Audits collections of tasks, and writes what was found as a page of the docs: `python -m tests.audits`.

    python -m tests.audits --folder FOLDER [--collection NAME]

The rule: whatever the page says comes from reports of `toolpack-server audit --json`. They are kept in the folder: a
collection whose report is there is not audited again, and the page has those that are there.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click

PAGE = Path(__file__).parents[1] / "docs" / "audits.md"
LONGEST = 300  # characters of an attempt; its report has the rest


class Collection(NamedTuple):
    """Tasks that are audited together.

    Attributes:
        title: What the page calls it.
        packs: Its toolpacks.
        options: Further options of the audit.
        distribution: What has to be installed for it.
    """

    title: str
    packs: str
    options: tuple[str, ...] = ()
    distribution: str = ""


COLLECTIONS = {
    "bundled": Collection("Bundled", "bank,workspace,office"),
    "agentdojo": Collection(
        "AgentDojo",
        "agentdojo-banking,agentdojo-slack,agentdojo-travel,agentdojo-workspace",
        ("--ignore", "/agentdojo-slack/web/web_requests"),
        "agentdojo",
    ),
}
HEAD = f"""# Audits

What [`audit`](tasks.md#audit) says of the collections of tasks that can be tried here. `python -m tests.audits` writes
this page: it runs the commands that are named below. *Processor seconds* are those of all processes of a command, its
start included; how long it took depends on what else the machine did. No finding is no proof: it says that these
attempts were told apart.

A **fault** names the attempt that shows it: the calls, as `run_function` takes them, and the answer; what is longer
than {LONGEST} characters is cut. Weaknesses, which may be meant so, are counted.
"""


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="Where the reports are kept.")
@click.option("--collection", "names", multiple=True, type=click.Choice([*COLLECTIONS]), help="Only this one.")
def audits(folder: Path, names: tuple[str, ...]) -> None:
    """Audit collections of tasks, and write docs/audits.md."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or COLLECTIONS:
        report = folder / f"{name}.json"
        if not report.exists():
            report.write_text(json.dumps(audited(COLLECTIONS[name])), encoding="utf-8")
    found = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in reports(folder).items()}
    PAGE.write_text(page(found), encoding="utf-8")
    click.echo(f"{PAGE.relative_to(Path.cwd())}: {', '.join(found)}")


def reports(folder: Path) -> dict[str, Path]:
    return {name: path for name in COLLECTIONS if (path := folder / f"{name}.json").exists()}


def audited(collection: Collection) -> dict[str, Any]:
    """Audit a collection: get its report, with the processor time that it took and what was installed."""
    before = processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        program = Path(sys.executable).parent / "toolpack-server"
        run = subprocess.run([program, *command(collection), "--json", file], check=False)
        if run.returncode not in {0, 1}:
            raise click.ClickException(f"The audit of {collection.packs} failed: see above.")
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    report["processor_seconds"] = round(processor_seconds() - before, 1)
    report["version"] = version(collection.distribution or "toolpack-server")
    return report


def command(collection: Collection) -> list[str]:
    return ["audit", "--packs", collection.packs, *collection.options]


def processor_seconds() -> float:
    """Get the processor time of all processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def page(found: dict[str, dict[str, Any]]) -> str:
    rows = [
        "| collection | tasks | attempts | with faults | with weaknesses only | processor seconds |",
        "| --- | --- | --- | --- | --- | --- |",
        *(row(COLLECTIONS[name].title, report) for name, report in found.items()),
    ]
    return "\n".join([HEAD, *rows, *(part(COLLECTIONS[name], report) for name, report in found.items())])


def row(title: str, report: dict[str, Any]) -> str:
    findings = [task["findings"] for task in report["tasks"].values()]
    faulty = sum(any(each["fault"] for each in found) for found in findings)
    weak = sum(bool(found) for found in findings) - faulty
    seconds = report["processor_seconds"]
    return f"| {title} | {len(findings):,} | {report['attempts']:,} | {faulty:,} | {weak:,} | {seconds:,.0f} |"


def part(collection: Collection, report: dict[str, Any]) -> str:
    kinds = Counter((each["fault"], each["kind"]) for task in report["tasks"].values() for each in task["findings"])
    lines = [
        f"\n## {collection.title}\n",
        f"`toolpack-server {' '.join(command(collection))}`"
        + (f", with {collection.distribution} {report['version']}" if collection.distribution else "")
        + "\n",
        "| finding | level | times |",
        "| --- | --- | --- |",
        *(
            f"| `{kind}` | {'fault' if fault else 'weakness'} | {count:,} |"
            for (fault, kind), count in sorted(kinds.items(), key=lambda each: (not each[0][0], each[0][1]))
        ),
    ]
    faults = [(name, each) for name, task in report["tasks"].items() for each in task["findings"] if each["fault"]]
    if not faults:
        return "\n".join([*lines, "\nNo task has a fault.\n"])
    rows = (f"| `{name}` | `{each['kind']}`: {cell(each['text'])} | {attempt(each)} |" for name, each in faults)
    return "\n".join([*lines, "\n| task | fault | attempt |", "| --- | --- | --- |", *rows, ""])


def attempt(finding: dict[str, Any]) -> str:
    calls = [{"function": call["function"], "kwargs": call["kwargs"]} for call in finding["calls"]]
    texts = ([json.dumps(calls, ensure_ascii=False)] if calls else ["no call"]) + (
        [f"answer {json.dumps(finding['answer'], ensure_ascii=False)}"] if finding["answer"] else []
    )
    text = "; ".join(texts)
    return cell(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", code=bool(calls or finding["answer"]))


def cell(text: str, *, code: bool = False) -> str:
    """Write a text into a cell of a table."""
    plain = " ".join(text.split()).replace("|", "\\|")
    return f"`{plain.replace('`', chr(39))}`" if code else plain


if __name__ == "__main__":
    audits()
