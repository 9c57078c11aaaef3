"""Command `toolpack-server conform`, which checks a server against the protocol's guarantees."""

import json
import sys
import time
from pathlib import Path

import click

from toolpack_conformance.probes.others import PROTOCOLS
from toolpack_conformance.probes.probe import GUARANTEES
from toolpack_conformance.report import as_json, as_lines, conform_other
from toolpack_conformance.report import conform as ask
from toolpack_conformance.target import Failed
from toolpack_server.features.api.commands import echo

_TOOLPACK = Path(__file__).parent / "packs" / "conform.py"


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server's URL.")
@click.option("--token", envvar="TOOLPACK_TOKEN", help="Bearer token, if the server has tokens.")
@click.option("--guarantee", "chosen", multiple=True, type=click.Choice(GUARANTEES), help="Check only this one.")
@click.option(
    "--protocol",
    type=click.Choice(["toolpack", *PROTOCOLS]),
    default="toolpack",
    show_default=True,
    help="The server's protocol. Other protocols get the checks that they can express.",
)
@click.option("--json", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write a report to this file.")
@click.option("--toolpack", is_flag=True, help="Print the toolpack that the server needs, and exit.")
def conform(
    url: str, token: str | None, chosen: tuple[str, ...], protocol: str, path: Path | None, *, toolpack: bool
) -> None:
    """Check through a server's URL whether it keeps the guarantees.

    Exit status 1: a check failed. 2: no check failed, but the time ran out before all checks were complete.
    """
    if toolpack:
        echo(*_TOOLPACK.read_text(encoding="utf-8").splitlines())
        return
    guarantees = [guarantee for guarantee in GUARANTEES if not chosen or guarantee in chosen]
    began = time.monotonic()
    try:
        if protocol == "toolpack":
            answers = ask(url, token=token, guarantees=guarantees)
        else:
            answers = conform_other(url, protocol, guarantees, token)
    except ModuleNotFoundError as missing:
        raise click.ClickException(f"{missing.name} isn't installed: run pip install {missing.name}.") from None
    except Failed as failed:
        raise click.ClickException(str(failed)) from None
    seconds = time.monotonic() - began
    if path:
        try:
            path.write_text(json.dumps(as_json(answers, url, seconds), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"The report can't be written to {path}: {error.strerror}.") from None
    echo(*as_lines(answers, guarantees))
    failures = sum(answer.failure is not None and answer.tried for answer in answers)
    untried = sum(not answer.tried for answer in answers)
    problems = [f"{failures} failed"] * bool(failures) + [f"no time for {untried}"] * bool(untried)
    echo(f"{len(answers)} checks in {seconds:.1f} s: {', '.join(problems) or 'all passed'}.")
    sys.exit(1 if failures else 2 * bool(untried))
