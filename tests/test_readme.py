"""Runs the README: every command in it, as it stands there, and compares what it prints with what stands below it.

The rule: no command is edited. The server takes a free port through `TOOLPACK_PORT`, and that port replaces 8000 in
the addresses that curl is given; ids and times are numbered in the order in which they appear, so that an id that
stands in two places must come twice. `.venv` is this very environment.

Two lines can't be run here. The test command would run itself: `.ci/run` takes it, and the other checks, out of the
README and runs them. The docker lines need an engine: `test_docs.py` runs the image's command and its health check.
The line that sets up and serves takes half a minute and the network for pip, so it is run as a whole where CI=true;
elsewhere only its last part is, in this environment.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
IN_CI = os.environ.get("CI") == "true"
MARK = "-- the next command --"


def blocks(section, *languages):
    """The code blocks of a section that are written in one of these languages."""
    text = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert text, f"the README has no section {section!r}"
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text[1], re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def commands_and_outputs(block):
    """What stands behind each `$ `, and what stands below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not parts[0], "a console block starts with a command"
    return [tuple(part.partition("\n")[::2]) for part in parts[1:]]


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), kept["PATH"]])  # a python3 that is new enough
    return kept | {"PATH": path} | more


@contextmanager
def serving(command, folder, seconds=60, **more):
    """Run a line that ends with the server; give what it prints once it listens."""
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(TOOLPACK_PORT="0", **more),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + seconds
        while '"create_session"}' not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield log.read_text()
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def port_of(banner):
    return re.search(r"http://127\.0\.0\.1:(\d+)", banner)[1]


def masked(text):
    """The same text whatever the ids and the time."""
    numbers = {}
    text = re.sub(r"\b[0-9a-f]{32}\b", lambda match: f"<id {numbers.setdefault(match[0], len(numbers))}>", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", text)


def run_console(pairs, folder, port="8000"):
    """Run commands in one bash and get each one's output."""
    script = "".join(f"{command}\necho '{MARK}'\n" for command, _ in pairs)
    ended = subprocess.run(
        ["bash", "-c", script.replace("127.0.0.1:8000", f"127.0.0.1:{port}")],
        check=False,  # some commands are there to fail
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    outputs = ended.stdout.replace(f"127.0.0.1:{port}", "127.0.0.1:8000").split(MARK + "\n")
    assert len(outputs) == len(pairs) + 1
    return [output if not output or output.endswith("\n") else output + "\n" for output in outputs[:-1]]


def check_console(section, folder, port="8000"):
    pairs = [pair for block in blocks(section, "console") for pair in commands_and_outputs(block)]
    assert pairs
    printed = run_console(pairs, folder, port)
    assert masked("".join(printed)) == masked("".join(output for _, output in pairs))


@pytest.fixture
def folder(tmp_path):
    """Where a reader stands: a folder with `.venv`."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def curl():
    if shutil.which("curl") is None:
        advice = "no curl here: install it to run the README's first session"
        if IN_CI:
            pytest.fail(advice)
        pytest.skip(advice)


def set_up_and_serve():
    (line,) = blocks("Start", "sh")
    return line.strip()


def test_the_server_says_what_the_readme_shows(folder):
    (shown,) = blocks("Start", "text")
    with serving(set_up_and_serve().split(" && ")[-1], folder) as banner:
        # A reader who has just started hasn't the package that these toolpacks need; the tests have it.
        plain = re.sub(r"^  agentdojo-.*\n", "", banner, flags=re.MULTILINE)
        assert plain.replace(f":{port_of(banner)}", ":8000") == shown


def test_the_first_command_installs_this_project_and_nothing_else():
    assert set_up_and_serve().split(" && ")[:-1] == ["python3 -m venv .venv", ".venv/bin/pip install -q ."]


@pytest.mark.skipif(not IN_CI, reason="installs the project anew, which takes the network: runs where CI=true")
def test_the_first_command_sets_up_and_serves(tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist"))
    with serving(set_up_and_serve(), clone, seconds=300) as banner:
        assert "bank" in banner


@pytest.mark.usefixtures("curl")
def test_first_session(folder):
    with serving(".venv/bin/toolpack-server serve", folder) as banner:
        check_console("A first session", folder, port_of(banner))


def test_a_first_session_takes_under_ten_lines():
    before_the_agent = "".join(blocks("A first session", "console")).partition("$ AGENT=")[0]
    assert before_the_agent.count("$ ") - before_the_agent.count('"$ ') < 10


def write_toolpack(folder):
    (folder / "packs").mkdir()
    (source,) = blocks("Write a toolpack", "python")
    (folder / "packs" / "wallet.py").write_text(source)


def test_write_a_toolpack(folder):
    write_toolpack(folder)
    check_console("Write a toolpack", folder)


def test_serve_a_toolpack(folder):
    write_toolpack(folder)
    (line,) = blocks("Write a toolpack", "sh")
    with serving(line.strip(), folder) as banner:
        assert "wallet: 2 functions" in banner
        assert "bank" not in banner
    flags = re.search(r"`(--pack-dir packs --packs [\w,]+)`", README)[1]
    with serving(f".venv/bin/toolpack-server serve {flags}", folder) as banner:
        assert "wallet: 2 functions" in banner
        assert "workspace: " in banner


def test_a_toolpack_may_have_the_name_of_a_bundled_one(folder):
    (source,) = blocks("Write a toolpack", "python")
    (folder / "packs").mkdir()
    (folder / "packs" / "bank.py").write_text(source.replace('Toolpack("wallet"', 'Toolpack("bank"'))
    command = ".venv/bin/toolpack-server call --pack-dir packs send_money recipient=DE02120300000000202051 amount=30"
    assert run_console([(command, "")], folder) == ["70.0\n"]


def test_run_agentdojo(folder):
    (program,) = blocks("Run AgentDojo against the server", "python")
    with serving(".venv/bin/toolpack-server serve --packs agentdojo-workspace", folder) as banner:
        (folder / "run.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        printed = run_console([(".venv/bin/python run.py", "")], folder)
    assert printed == ["utility: True\n"]


@pytest.mark.usefixtures("curl")
def test_operate(folder):
    make_token, ask_ready = (commands_and_outputs(block) for block in blocks("Operate", "console"))
    (told,) = run_console(make_token, folder)
    assert re.sub(r"[\w-]{43}", "<token>", told) == re.sub(r"[\w-]{43}", "<token>", make_token[0][1])
    (line,) = blocks("Operate", "sh")
    with serving(line.strip(), folder) as banner:
        assert run_console(ask_ready, folder, port_of(banner)) == [output for _, output in ask_ready]


def test_ci_runs_the_test_command_and_the_other_checks():
    commands = "".join(blocks("Develop", "sh"))
    taken = subprocess.run([ROOT / ".ci" / "run", "--print"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert taken == commands
    assert ".venv/bin/pytest\n" in taken


def test_every_code_block_is_run_or_named_here():
    sections = re.findall(r"^## (.*)$", README, re.MULTILINE)
    run = {"Start", "A first session", "Write a toolpack", "Run AgentDojo against the server", "Operate", "Develop"}
    not_run = {"Run in a container"}
    assert {section for section in sections if blocks(section, "sh", "console", "python", "bash")} == run | not_run
    outside = [line for section in not_run for block in blocks(section, "sh") for line in block.splitlines()]
    assert all(line.startswith("docker ") for line in outside)
