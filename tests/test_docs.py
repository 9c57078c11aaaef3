"""The pages' lists of settings, commands, methods and error codes are complete, and the image's command works."""

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Literal

import pytest
from patience import PATIENCE
from redis_server import free_port
from serving import AGENTS_METHODS, CLIENTS_METHODS

from toolpack_server.base.companions import COMMANDS, companions
from toolpack_server.base.settings import PREFIX, Settings
from toolpack_server.cli import all_commands
from toolpack_server.protocol.parameters import SessionId
from toolpack_server.rpc import codes
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import App, Method
from toolpack_server.sessions.record_kinds import RecordKind
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.installed import load_features

ROOT = Path(__file__).parent.parent
PROTOCOL, DEPLOY, SETTINGS = (
    (ROOT / "docs" / page).read_text(encoding="utf-8")
    for page in ("reference/protocol.md", "operate/deploy.md", "operate/settings.md")
)
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def rows(first_cell, page=PROTOCOL):
    """Return the cells of the table rows whose first cell matches a pattern."""
    cells = [re.split(r" *\| *", line.strip("| ")) for line in page.splitlines() if line.startswith("|")]
    return [row for row in cells if re.fullmatch(first_cell, row[0])]


def settings_table():
    own = (feature.settings for feature in load_features() if feature.__module__.startswith("toolpack_server."))
    return [
        f"| `{variable}` | {default and f'`{default}`'} | {sentence} |".replace("|  |", "| |")
        for kind in (Settings, *filter(None, own))
        for variable, (default, sentence) in kind.described().items()
    ]


def test_every_setting_is_documented():
    expected = settings_table()
    lines = [line for line in SETTINGS.splitlines() if line.startswith(f"| `{PREFIX}")]
    assert lines == expected, "the settings table of docs/operate/settings.md must be:\n" + "\n".join(expected)


def test_every_method_is_documented_with_its_parameters_in_order():
    methods = PROTOCOL[: PROTOCOL.index("\n## Examples\n")]
    table = {row[0].strip("`"): row for row in rows(r"`[a-z_.]+`", methods)}
    clients = [method.declared.name for method in CLIENTS_METHODS]
    others = [method for method in AGENTS_METHODS if method.declared.name not in clients]
    assert sorted(table) == sorted([*clients, *(method.declared.name for method in others)])
    for method in [*CLIENTS_METHODS, *others]:
        names_shown = re.findall(r"(?:^|; )`(\w+)`", table[method.declared.name][1])
        assert names_shown == [*method.names()], method.declared.name


def test_every_command_is_documented():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    commands = {*all_commands(), *companions(COMMANDS)}
    assert sorted(re.findall(r"^\| `([a-z -]+)` \|", page, re.MULTILINE)) == sorted(commands)


def test_the_methods_of_an_agents_address_are_documented():
    sentence = re.search(r"At this address (.*?) work, without a `session_id`", PROTOCOL, re.DOTALL)[1]
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(method.declared.name for method in AGENTS_METHODS)


def test_every_error_code_is_documented():
    all_codes = {*codes.STANDARD, *codes.CODES.values(), *codes.FAILURE_CODES.values(), -32000}
    assert sorted(int(row[0]) for row in rows(r"-32\d\d\d")) == sorted(all_codes)


def image(instruction):
    """Return the words of a Dockerfile instruction that is written as JSON."""
    return json.loads(re.search(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)[1])


def as_in_the_image(tmp_path, **variables):
    """Return the image's command, with the programs of this environment and the folders of the test."""
    for folder in ("data", "packs"):
        (tmp_path / folder).mkdir()
    folders = {"/data": str(tmp_path / "data"), "/packs": str(tmp_path / "packs")}
    (program,) = image("ENTRYPOINT")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return subprocess.Popen(
        [str(Path(sys.prefix) / "bin" / program), *(folders.get(word, word) for word in image("CMD"))],
        cwd=tmp_path,
        env=inherited | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.heavy
def test_the_image_starts_with_tokens_and_is_healthy(tmp_path):
    port = str(free_port())
    variables = dict(re.findall(r"-e (TOOLPACK_\w+)=(\S+)", DEPLOY))
    assert variables.keys() == {"TOOLPACK_TOKENS", "TOOLPACK_PACKS"}
    variables = {name: value.strip("`.") for name, value in variables.items()}
    process = as_in_the_image(tmp_path, TOOLPACK_PORT=port, **variables)
    python, *arguments = image("    CMD")  # indented, because this CMD belongs to HEALTHCHECK
    assert python == "python"
    check = [sys.executable, *arguments]
    try:
        deadline = time.monotonic() + PATIENCE
        surroundings = os.environ | {"TOOLPACK_PORT": port}
        while subprocess.run(check, check=False, env=surroundings, stderr=subprocess.DEVNULL).returncode:
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
    finally:
        process.terminate()
        printed, _ = process.communicate(timeout=PATIENCE)
    assert "bank: " in printed


def test_without_tokens_the_image_says_how_to_run_it(tmp_path):
    process = as_in_the_image(tmp_path)
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "docker run " in printed
    assert "TOOLPACK_TOKENS=" in printed


DEVELOP = (ROOT / "docs" / "internals" / "develop.md").read_text(encoding="utf-8")


def sources():
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "server").rglob("*.py"))


def test_the_files_and_names_in_the_walks_exist():
    code, walks = sources(), DEVELOP[DEVELOP.index("## How one request travels") : DEVELOP.index("## Release\n")]
    spans = set(re.findall(r"`([^`\n]+)`", walks))
    files = {span for span in spans if re.fullmatch(r"[\w./]+\.(py|md|json|toml)", span)}
    assert len(files) > 10
    for name in files:
        below = [ROOT / name, ROOT / "server" / "toolpack_server" / name, *(ROOT / "server").rglob(name)]
        assert any(path.exists() for path in below), name
    classes = {class_name for span in spans - files for class_name in re.findall(r"\b[A-Z][a-z]+[A-Z]?\w*", span)}
    assert len(classes) > 8
    for name in classes:
        assert re.search(rf"^(class {name}\b|{name} = )", code, re.MULTILINE), name
    for name in {span.rpartition(".")[2] for span in spans if re.fullmatch(r"(app|context)\.[a-z._]+", span)}:
        assert re.search(rf"^ +self\.{name}\b", code, re.MULTILINE), name


def test_the_method_of_the_walk_works_as_a_feature(make_bench):
    walk = {"Literal": Literal, "SessionId": SessionId, "Caller": Caller, "App": App, "Method": Method}
    walk["RecordKind"] = RecordKind
    for block in re.findall(r"^ {4}```python\n(.*?)^ {4}```$", DEVELOP, re.MULTILINE | re.DOTALL):
        exec(textwrap.dedent(block), walk)
    added = {"name": "walked", "methods": (walk["TouchSession"],), "record_kinds": (walk["RemarkKind"],)}
    bench = make_bench(features=[type("Walked", (Feature,), added)])
    session_id = bench.create("ledger")
    assert bench.rpc("touch_session", session_id=session_id) is True
    assert bench.service.context.record_kinds["remark"].name == "remark"
