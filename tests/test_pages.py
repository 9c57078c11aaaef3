"""The commands of the README and the pages of docs/: each runs as printed, and its output is compared.

No command is edited. The server takes a free port through `TOOLPACK_PORT`, and that port replaces 8000 in the addresses
that curl gets. Ids and times are numbered in order of appearance, so an id that occurs twice on the page must occur
twice in the output. `.venv` is this very environment.

Some lines can't run here. The test command would run itself: `.ci/run` runs it, and the other checks of
docs/internals/develop.md. The docker lines need an engine: `test_docs.py` runs the image's command and its health
check. The line that sets up and serves takes half a minute and the network for pip. With CI=true it runs as a whole;
elsewhere only its last part runs, in this environment.
"""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import redis_server
import test_ors_clients
import trainers_player
from ci import IN_CI, without
from patience import PATIENCE

import toolpack_server.perturbations
from toolpack_server.base.errors import SettingsError
from tools.llms import llms_text

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "server" / "toolpack_server"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [
        *(ROOT / name for name in ("README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        *sorted((ROOT / "skills").rglob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
}
MARK = "-- the next command --"
# The progress line of a long command, printed after ten seconds.
HOW_FAR = re.compile(r"^(?:Evaluating|Checking tasks|Auditing tasks|Replaying|Verifying): \d+ of \d+\n", re.MULTILINE)
HOME = "/home/ann/project"  # the reader's folder on the pages


def section(page, heading):
    text = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGES[page], re.MULTILINE | re.DOTALL)
    assert text, f"{page} has no section {heading!r}"
    return text[1]


def blocks(page, heading, *languages):
    """Return the code blocks of a section in one of these languages."""
    code_blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section(page, heading), re.MULTILINE | re.DOTALL)
    return [block for language, block in code_blocks if language in languages]


def commands_and_outputs(block):
    """Return the commands after each `$ `, with the output below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not parts[0], "a console block starts with a command"
    return [tuple(part.partition("\n")[::2]) for part in parts[1:]]


def environment(**variables):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
    path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), inherited["PATH"]])  # a python3 that is new enough
    return inherited | {"PATH": path} | variables


@contextmanager
def serving(command, folder, seconds=PATIENCE, **variables):
    """Run a command line whose last program is the server. Yield its output when the server listens."""
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment(TOOLPACK_PORT="0", **variables),
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


BANK = {
    "TOOLPACK_PACKS": "bank"
}  # unless another toolpack is needed, because importing AgentDojo's toolpacks takes most of the time


def port_of(banner):
    return re.search(r"http://127\.0\.0\.1:(\d+)", banner)[1]


def masked(text):
    """Return the text with ids, times and machine-dependent values replaced."""
    numbers = {}
    text = re.sub(r"^Slow: its import has taken .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\b[0-9a-f]{32,}\b", lambda match: f"<id {numbers.setdefault(match[0], len(numbers))}>", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", text)


def run_console(pairs, folder, port="8000", **variables):
    """Run commands in one bash, and return the output of each."""
    script = "".join(f"{command}\necho '{MARK}'\n" for command, _ in pairs)
    ended = subprocess.run(
        ["bash", "-c", script.replace("127.0.0.1:8000", f"127.0.0.1:{port}")],
        check=False,  # some commands must fail
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    printed = HOW_FAR.sub("", ended.stdout)
    printed = printed.replace(f"127.0.0.1:{port}", "127.0.0.1:8000").replace(str(folder.resolve()), HOME)
    outputs = printed.split(MARK + "\n")
    assert len(outputs) == len(pairs) + 1
    return [output if not output or output.endswith("\n") else output + "\n" for output in outputs[:-1]]


def check_console(page, heading, folder, port="8000", **variables):
    pairs = [pair for block in blocks(page, heading, "console") for pair in commands_and_outputs(block)]
    assert pairs
    printed = run_console(pairs, folder, port, **variables)
    assert masked("".join(printed)) == masked("".join(output for _, output in pairs))


@pytest.fixture
def folder(tmp_path):
    """Return the reader's folder, with `.venv`."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def curl():
    if shutil.which("curl") is None:
        without("no curl here: install it to run the pages' sessions")


START = "docs/start/"
WRITE_SKILL, PORT_SKILL = (f"skills/{name}/SKILL.md" for name in ("write-a-toolpack", "port-a-benchmark"))
WHY, TASKS, USERS = "docs/evaluate/why.md", "docs/write/tasks.md", "docs/train/users.md"
INSTALL, SESSION, TOOLPACK, TASK = (f"{START}{name}.md" for name in ("install", "session", "toolpack", "task"))


def set_up_and_serve():
    (line,) = blocks("README.md", "Start", "sh")
    assert blocks(INSTALL, "The server", "sh") == [line]
    return line.strip()


def test_the_server_prints_the_output_that_the_page_shows(folder):
    (expected,) = blocks(INSTALL, "The server", "text")
    with serving(set_up_and_serve().split(" && ")[-1], folder) as banner:
        # A new reader doesn't have the packages of these toolpacks; the tests may have them.
        plain = re.sub(r"^  (agentdojo|bfcl|tau2)\b.*\n", "", banner, flags=re.MULTILINE)
        assert plain.replace(f":{port_of(banner)}", ":8000") == expected


def test_the_first_command_installs_only_this_project():
    install = ".venv/bin/pip install -q '.[client]' ./packages/toolpack-author"
    assert set_up_and_serve().split(" && ")[:-1] == ["python3 -m venv .venv", install]


@pytest.mark.skipif(not IN_CI, reason="installs the project anew, which takes the network: runs where CI=true")
def test_the_first_command_sets_up_and_serves(tmp_path):
    clone = tmp_path / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist"))
    (expected,) = blocks(INSTALL, "The server", "text")
    with serving(set_up_and_serve(), clone, seconds=300) as banner:
        # pip may have printed something before
        assert banner.replace(f":{port_of(banner)}", ":8000").endswith(expected)


@pytest.mark.usefixtures("curl")
@pytest.mark.parametrize(
    ("page", "heading"),
    [
        (SESSION, "With curl"),
        ("docs/reference/mcp.md", "A first call"),
        ("docs/reference/protocol.md", "Examples"),
        ("docs/evaluate/replay.md", "Replay a session"),
        ("docs/evaluate/replay.md", "Bundles"),
    ],
)
def test_a_session_in_curl(folder, page, heading):
    with serving(".venv/bin/toolpack-server serve", folder, **BANK) as banner:
        check_console(page, heading, folder, port_of(banner))


def test_a_replay_in_python(folder):
    (program,) = blocks("docs/evaluate/replay.md", "Replay a session", "python")
    (printed,) = blocks("docs/evaluate/replay.md", "Replay a session", "text")
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        (folder / "replay.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        assert run_console([(".venv/bin/python replay.py", "")], folder) == [printed]


def test_a_first_task(folder):
    (folder / "packs").mkdir()
    (errand,), (program,) = blocks(TASK, "Write it", "python"), blocks(TASK, "Play it", "python")
    (folder / "packs" / "errand.py").write_text(errand)
    check_console(TASK, "Try it", folder)
    with serving(".venv/bin/toolpack-server serve --pack-dir packs", folder) as banner:
        (folder / "play.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        assert run_console([(".venv/bin/python play.py", "")], folder) == blocks(TASK, "Play it", "text")


def test_the_skill_for_toolpacks_ends_without_findings(folder):
    (folder / "packs").mkdir()
    headings = ("2. Write the functions", "3. Write the tasks")
    parts = [block for heading in headings for block in blocks(WRITE_SKILL, heading, "python")]
    (folder / "packs" / "library.py").write_text("\n\n".join(parts))
    flags = "--pack-dir packs --packs library"
    command = f".venv/bin/toolpack-server check {flags} --tasks && .venv/bin/toolpack-server audit {flags}"
    (printed,) = run_console([(command, "")], folder)
    assert "1 toolpack with 3 functions and 2 tasks: no problems.\n" in printed
    assert re.fullmatch(r"2 tasks, .*: 0 with faults, 0 with weaknesses only\.", printed.splitlines()[-1]), printed


def test_the_skill_for_ports_has_a_test_that_passes(folder):
    (folder / "packs").mkdir()
    (folder / "tests").mkdir()
    (notebook,) = (block for block in blocks(WORLDS, "Classes as environments", "python") if "class Notebook" in block)
    (folder / "packs" / "_notebook.py").write_text(notebook)
    (toolpack,) = blocks(PORT_SKILL, "2. Write the toolpack", "python")
    (folder / "packs" / "notes.py").write_text(toolpack)
    (test,) = blocks(PORT_SKILL, "3. Prove that it is the same", "python")
    (folder / "tests" / "test_port.py").write_text(test)
    (printed,) = run_console([(".venv/bin/pytest -q --pack-dir packs tests", "")], folder)
    assert "1 passed" in printed


def test_a_first_session_in_python_has_ten_lines(folder):
    (program,) = blocks("README.md", "A first session", "python")
    (expected,) = blocks("README.md", "A first session", "text")
    assert blocks(SESSION, "In Python", "python", "text") == [program, expected]
    assert len(list(filter(None, program.splitlines()))) <= 10
    with serving(".venv/bin/toolpack-server serve", folder, **BANK) as banner:
        (folder / "first.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        assert run_console([(".venv/bin/python first.py", "")], folder) == [expected]


def test_a_first_sessions_output_is_readable():
    printed = [*blocks(SESSION, "In Python", "text"), *blocks(SESSION, "With curl", "console")]
    assert [line for block in printed for line in block.splitlines() if len(line) > 120 and line[0] != "$"] == []


def write_wallet(folder):
    assert "`packs/wallet.py`" in section(TOOLPACK, "Write it")
    (source,) = blocks(TOOLPACK, "Write it", "python")
    (folder / "packs").mkdir()
    (folder / "packs" / "wallet.py").write_text(source)


def test_write_a_toolpack(folder):
    write_wallet(folder)
    check_console(TOOLPACK, "Try it", folder)


def test_write_a_package(folder):
    (block,) = blocks(WORLDS, "Packages", "console")
    ((command, wrote),) = commands_and_outputs(block)
    (printed,) = run_console([(command, "")], folder)
    prefix = ".venv/bin/"  # the command doesn't print this folder if it is on the PATH
    assert printed.replace(prefix, "") == wrote.replace(prefix, "")
    (expected,) = blocks(WORLDS, "Packages", "text")
    assert expected in (folder / "groceries-toolpack" / "pyproject.toml").read_text()


WORLDS, PORT, MOVING = (f"docs/write/{name}.md" for name in ("worlds", "port", "moving"))
LESSONS = ("Plain functions", "An environment", "Test a toolpack")
PORTS = ("Port a collection", "Functions from JSON Schemas")
COMPARE = "Compare a port with its original"


def work_through(page, headings, folder):
    """Follow a page in order: save each program to the file that the text before it names, and run each command."""
    for heading in headings:
        text = section(page, heading)
        for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            language, content = block.groups()
            if language == "python":
                path = folder / re.findall(r"`([\w/]+\.py)`", text[: block.start()])[-1]
                assert not path.exists(), f"{heading}: two programs are saved as {path}"
                path.parent.mkdir(exist_ok=True)
                path.write_text(content)
            elif language == "console":
                pairs = commands_and_outputs(content)
                assert "".join(run_console(pairs, folder)) == "".join(output for _, output in pairs), heading
            else:
                (printed,) = run_console([(content.strip(), "")], folder)
                assert " passed" in printed, printed
                assert "failed" not in printed, printed


def test_the_lessons_on_toolpacks(folder):
    work_through("docs/write/toolpacks.md", LESSONS, folder)


def test_how_to_port(folder):
    work_through(WORLDS, ["Classes as environments"], folder)
    work_through(PORT, PORTS, folder)
    command = re.search(r"`(\S+pytest --pack-dir packs tests)`", section(PORT, "Port a collection"))[1]
    (printed,) = run_console([(command, "")], folder)
    assert "1 passed" in printed
    assert compared_port(folder, "notes") == blocks(PORT, COMPARE, "console")


def compared_port(folder, toolpack, original="_notebook:Notebook"):
    """Serve the folder's toolpacks and compare one with its original. Return the console blocks that show this."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (line,), (block,) = (blocks(PORT, COMPARE, language) for language in ("sh", "console"))
    ((command, _),) = commands_and_outputs(block)
    command = command.replace(" notes _notebook:Notebook ", f" {toolpack} {original} ")
    with serving(line.strip(), folder) as banner:
        (printed,) = run_console([(command, "")], folder, port_of(banner))
    return [f"$ {command}\n{printed}"]


def test_langchain_tools(folder):
    pytest.importorskip("langchain_core")
    work_through(PORT, ["LangChain tools"], folder)
    (create,) = blocks(PORT, COMPARE, "python")
    (folder / "packs" / "_original.py").write_text(create)
    (block,) = compared_port(folder, "jotter", "_original:create")
    assert block.endswith("\n20 sessions of 30 calls: no difference.\n")


def test_routes_of_a_web_application(folder):
    pytest.importorskip("fastapi")
    pytest.importorskip("sqlalchemy")
    work_through(PORT, ["Port a web application"], folder)


def test_a_world_that_moves_is_tested(folder):
    town, _ = blocks(MOVING, "A first world that moves", "python")
    (gift,) = blocks(MOVING, "Rules", "python")
    (folder / "packs").mkdir()
    (folder / "packs" / "town.py").write_text(f"{town}\n\nfrom toolpack_server import Task\n\n{gift}")
    work_through(MOVING, ["Test it"], folder)
    with (folder / "tests" / "test_town.py").open("a") as test:
        test.write(
            "\n\ndef test_the_gift(toolpack_session):\n"
            "    session = toolpack_session(toolpack, task='town/gift')\n"
            "    assert session.run('wait')['news'] == ['Ann brought a gift.']\n"
            "    session.run('pick_up', what='gift')\n"
            "    assert session.evaluate()['passed']\n"
        )
    (printed,) = run_console([(".venv/bin/pytest -q --pack-dir packs tests", "")], folder)
    assert "2 passed" in printed, printed


def test_toolpacks_with_databases_and_files(folder):
    work_through(WORLDS, ["Keep a database", "Keep files"], folder)


def test_a_toolpack_with_a_data_frame(folder):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    work_through(WORLDS, ["Data frames"], folder)


def test_a_client_that_launches_its_server(folder):
    check_console("docs/reference/mcp.md", "Clients that launch servers", folder)


def test_find_the_mistakes_of_a_toolpack(folder):
    page, heading = "docs/write/toolpacks.md", "Find mistakes"
    assert "`shaky/counter.py`" in section(page, heading)
    (source,) = blocks(page, heading, "python")
    (folder / "shaky").mkdir()
    (folder / "shaky" / "counter.py").write_text(source)
    check_console(page, heading, folder)


def test_a_toolpack_with_content(folder):
    (source,) = blocks("docs/reference/mcp.md", "Content", "python")
    (folder / "packs").mkdir()
    (folder / "packs" / "picture.py").write_text(source)
    (drawn,) = run_console([(".venv/bin/toolpack-server call --pack-dir packs draw", "")], folder)
    assert [block["type"] for block in json.loads(drawn)] == ["text", "image"]


def test_serve_a_toolpack(folder):
    write_wallet(folder)
    (line,) = blocks(TOOLPACK, "Serve it", "sh")
    with serving(line.strip(), folder) as banner:
        assert "wallet: 2 functions" in banner
        assert "bank" not in banner


def test_serve_a_toolpack_beside_a_bundled_one(folder):
    write_wallet(folder)
    text = section("docs/reference/toolpack_api.md", "How toolpacks are found")
    flags = re.search(r"`(--pack-dir packs --packs [\w,]+)`", text)[1]
    with serving(f".venv/bin/toolpack-server serve {flags}", folder) as banner:
        assert "wallet: 2 functions" in banner
        assert "workspace: " in banner


def test_a_toolpack_may_have_the_name_of_a_bundled_one(folder):
    (source,) = blocks(TOOLPACK, "Write it", "python")
    (folder / "packs").mkdir()
    (folder / "packs" / "bank.py").write_text(source.replace('Toolpack("wallet"', 'Toolpack("bank"'))
    command = ".venv/bin/toolpack-server call --pack-dir packs send_money recipient=DE02120300000000202051 amount=30"
    assert run_console([(command, "")], folder) == ["70.0\n"]


def test_run_agentdojo(folder):
    (program,) = blocks("docs/write/agentdojo.md", "Run AgentDojo against the server", "python")
    with serving(".venv/bin/toolpack-server serve --packs agentdojo-workspace", folder) as banner:
        (folder / "run.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        printed = run_console([(".venv/bin/python run.py", "")], folder)
    assert printed == ["utility: True\n"]


def test_call_functions(folder):
    check_console("docs/reference/commands.md", "Call functions", folder, **BANK)


def test_serve_a_toolpack_while_writing_it(folder):
    (folder / "packs").mkdir()
    (source,) = blocks(TOOLPACK, "Write it", "python")
    (folder / "packs" / "wallet.py").write_text(source)
    (line,) = blocks("docs/reference/commands.md", "Serve what you are writing", "sh")
    with serving(line.strip(), folder) as banner:
        assert "wallet: 2 functions" in banner


def test_look_at_sessions(folder):
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        create = (
            "from toolpack_server.client import Client\n"
            f"client = Client('http://127.0.0.1:{port_of(banner)}')\n"
            "session_id = client.create_session(['bank'], labels={'run': '7'})['session_id']\n"
            "client.run_function(session_id, 'move_to_savings', {'amount': '100.00'})\n"
        )
        (folder / "create.py").write_text(create)
        assert run_console([(".venv/bin/python create.py", "")], folder) == [""]
        check_console("docs/reference/commands.md", "Look at sessions", folder, port_of(banner))


CLIENT_PROGRAMS = ("A session in Python", "The agent's side", "Participants", "Batches", "A tree search")


def test_the_python_client(folder):
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        for heading in CLIENT_PROGRAMS:
            (program,) = blocks("docs/reference/client.md", heading, "python")
            (folder / "run.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
            (printed,) = run_console([(".venv/bin/python run.py", "")], folder)
            in_prose = section("docs/reference/client.md", heading).rpartition("It prints `")[2].partition("`.")[0]
            in_block = blocks("docs/reference/client.md", heading, "text")
            expected = "".join(in_block) or re.sub("` and `|\n", "\n", in_prose.replace("\n", " ")) + "\n"
            assert printed == expected, heading


def test_ask_a_server_whether_it_conforms(folder):
    (setup,) = blocks("docs/internals/conform.md", "Check a server", "sh")
    (block,) = blocks("docs/internals/conform.md", "Check a server", "console")
    ((command, table),) = commands_and_outputs(block)
    with serving(setup, folder) as banner:
        (printed,) = run_console([(command, "")], folder, port_of(banner))
    assert re.sub(r"in \d+\.\d s", "in <time>", printed) == re.sub(r"in \d+\.\d s", "in <time>", table)


def test_judge_an_a2a_agent(folder):
    page = "docs/evaluate/a2a.md"
    (setup,) = blocks(page, "Judge an agent", "sh")
    (program,) = blocks(page, "Judge an agent", "python")
    (block,) = blocks(page, "Judge an agent", "console")
    ((command, expected),) = commands_and_outputs(block)
    (green,) = blocks(page, "Be a green agent", "sh")
    ports = {"9010": str(redis_server.free_port()), "9009": str(redis_server.free_port())}
    with serving(setup, folder) as banner, ExitStack() as stack:
        ports["8000"] = port_of(banner)

        def localized(text):
            return re.sub(r"\b(8000|9009|9010)\b", lambda match: ports[match[1]], text)

        (folder / "agent.py").write_text(localized(program))
        for line, port in ((".venv/bin/python agent.py", "9010"), (localized(green), "9009")):
            stack.callback(start_beside(line, folder, ports[port]))
        (printed,) = run_console([(localized(command), "")], folder)
        run = re.compile("judge=[0-9a-f]{8}")
        assert run.sub("", masked(printed)) == run.sub("", masked(localized(expected)))
        (request,) = blocks(page, "Be a green agent", "text")
        part = {"kind": "text", "text": localized(request)}
        message = {"role": "user", "messageId": "1", "parts": [part], "kind": "message"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
        post = urllib.request.Request(
            f"http://127.0.0.1:{ports['9009']}/", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(post, timeout=PATIENCE) as reply:
            ((_, data),) = [artifact["parts"] for artifact in json.load(reply)["result"]["artifacts"]]
        assert (data["data"]["rollouts"], data["data"]["pass_rate"]) == (2, 1)


def start_beside(command, folder, port):
    """Start a program, wait until it listens, and return a function that stops it."""
    process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, env=environment())
    deadline = time.monotonic() + PATIENCE
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", int(port))).close()
            return lambda: (process.kill(), process.wait())
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_why_did_it_fail(folder):
    (program,) = blocks(WHY, "A run", "python")
    (commands,) = blocks(WHY, "A run", "sh")
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        (folder / "careless.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        pairs = [(line, "") for line in commands.splitlines()]
        assert "".join(run_console(pairs, folder, port_of(banner))) == blocks(WHY, "A run", "text")[0]


def test_both_sides_of_a_conversation(folder):
    toolpack, agent = blocks(USERS, "Both sides of a conversation", "python")
    (line,) = blocks(USERS, "Both sides of a conversation", "sh")
    (user,) = blocks(USERS, "Both sides of a conversation", "text")
    (folder / "packs").mkdir()
    (folder / "packs" / "helpdesk.py").write_text(toolpack)
    (folder / "user.json").write_text(user)
    with serving(line.strip(), folder) as banner:
        port = port_of(banner)
        (folder / "agent.py").write_text(agent.replace(":8000", f":{port}"))
        with subprocess.Popen([sys.executable, "agent.py"], cwd=folder) as process:
            check_console(USERS, "Both sides of a conversation", folder, port)
        assert process.returncode == 0


@pytest.mark.parametrize("heading", ["An environment", "Fork at a step"])
def test_an_environment_for_trainers(folder, heading):
    (program,) = blocks("docs/train/rollouts.md", heading, "python")
    (printed,) = blocks("docs/train/rollouts.md", heading, "text")
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        (folder / "program.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        assert run_console([(".venv/bin/python program.py", "")], folder) == [printed]


# A package `trl` for environments without TRL. Its trainer plays one group, in which every second rollout passes.
TRL_STUB = """
def GRPOConfig(**settings):
    return settings

class GRPOTrainer:
    def __init__(self, model, reward_funcs, environment_factory, args):
        self.environments = [environment_factory() for _ in range(args["num_generations"])]
        self.reward_funcs = reward_funcs

    def train(self):
        for number, each in enumerate(self.environments):
            each.reset()
            if number % 2:
                each.move_to_savings("300.00")
        completions = [[{"role": "assistant", "content": "Done."}] for _ in self.environments]
        for reward in self.reward_funcs:
            reward(completions=completions, environments=self.environments)
"""


def test_a_program_for_trl(folder):
    (program,) = blocks("docs/train/rollouts.md", "With TRL", "python")
    (folder / "trl.py").write_text(TRL_STUB)
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        (folder / "train_trl.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        (printed,) = run_console([(".venv/bin/python train_trl.py", "")], folder)
    rollouts = re.findall(r"^\('[0-9a-f]{48}', (\d\.\d), \[\{'name': .*\]\)$", printed, re.MULTILINE)
    assert rollouts == ["0.0", "1.0"] * 32
    assert len(printed.splitlines()) == 64


@pytest.mark.parametrize(
    ("heading", "number", "module"),
    [
        ("ORS", 0, "openreward"),
        ("OpenEnv", 0, "openenv.core"),
        ("OpenEnv", 1, "openenv.core.harness"),
        ("OpenEnv", 2, "verifiers.v1, openenv.core"),
    ],
)
def test_an_episode_of_a_trainers_client(folder, heading, number, module):
    test_ors_clients.needs(module)
    program = blocks("docs/train/trainers.md", heading, "python")[number]
    printed = blocks("docs/train/trainers.md", heading, "text")[number]
    assert len(list(filter(None, program.splitlines()))) <= 10
    calls = [("move_to_savings", {"amount": "300.00"}), ("submit_answer", {"answer": "Done."})]
    with (
        serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner,
        trainers_player.scripted(calls) as model,
    ):
        program = program.replace(":8000", f":{port_of(banner)}").replace(":9000", f":{model}")
        (folder / "play.py").write_text(program)
        assert run_console([(f"{test_ors_clients.PYTHON} play.py", "")], folder) == [printed]


def test_rollouts_for_training(folder):
    (program,) = blocks("docs/train/rollouts.md", "A training loop", "python")
    (printed,) = blocks("docs/train/rollouts.md", "A training loop", "text")
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        (folder / "train.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        assert run_console([(".venv/bin/python train.py", "")], folder) == [printed]


@pytest.mark.long
def test_values_of_each_call(folder):
    headings = ("One rollout", "Training with advantages")
    pairs = [blocks("docs/train/values.md", heading, "python", "text") for heading in headings]
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        for program, printed in pairs:
            (folder / "program.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
            assert run_console([(".venv/bin/python program.py", "")], folder) == [printed]
            assert len([line for line in program.splitlines() if line.strip()]) <= 30


def test_perturbations(folder):
    (program,) = blocks("docs/evaluate/faults.md", "In one sitting", "python")
    (printed,) = blocks("docs/evaluate/faults.md", "In one sitting", "text")
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        (folder / "perturbed.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        assert run_console([(".venv/bin/python perturbed.py", "")], folder) == [printed]
    (variants,) = blocks("docs/evaluate/faults.md", "Variants of tasks", "python")
    toolpack = toolpack_server.Toolpack("shop", toolpack_server.TaskEnvironment)
    exec(variants, {"toolpack": toolpack, "p": toolpack_server.perturbations})
    assert [*toolpack.task_list.all()["pay-ann"].variants] == [
        *toolpack_server.perturbations.outages("pay"),
        *("lost", "flaky", "rug-pull"),
    ]


def test_attack_success(folder):
    (program,) = blocks("docs/evaluate/faults.md", "Attack success", "python")
    (commands,) = blocks("docs/evaluate/faults.md", "Attack success", "console")
    with serving(".venv/bin/toolpack-server serve --packs bank", folder) as banner:
        (folder / "attacked.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        commands = commands_and_outputs(commands)
        assert run_console(commands, folder, port_of(banner)) == [output for _, output in commands]


def test_the_tree_search_has_thirty_lines():
    (program,) = blocks("docs/reference/client.md", "A tree search", "python")
    assert len([line for line in program.splitlines() if line.strip()]) <= 30


@pytest.mark.usefixtures("curl")
def test_operate(folder):
    (make_token,) = (commands_and_outputs(block) for block in blocks("docs/operate/deploy.md", "Tokens", "console"))
    (ask_ready,) = (commands_and_outputs(block) for block in blocks("docs/operate/deploy.md", "Health", "console"))
    (token_output,) = run_console(make_token, folder)
    assert re.sub(r"[\w-]{43}", "<token>", token_output) == re.sub(r"[\w-]{43}", "<token>", make_token[0][1])
    (line,) = blocks("docs/operate/deploy.md", "Tokens", "sh")
    with serving(line.strip(), folder, **BANK) as banner:
        assert run_console(ask_ready, folder, port_of(banner)) == [output for _, output in ask_ready]


@pytest.mark.skipif(sys.platform != "linux", reason="there are no executors elsewhere")
@pytest.mark.usefixtures("curl")
@pytest.mark.parametrize("heading", ["Turn it on", "Sandbox"])
def test_a_first_session_in_processes(folder, heading):
    if heading == "Sandbox" and not IN_CI:
        from toolpack_server.features.executors.sandbox import check_sandbox  # noqa: PLC0415 - only Linux has it

        try:
            check_sandbox()
        except SettingsError as problem:
            pytest.skip(str(problem))
    (line,) = blocks("docs/operate/isolation.md", heading, "sh")
    with serving(line.strip(), folder, **BANK) as banner:
        check_console(SESSION, "With curl", folder, port_of(banner))


@pytest.mark.skipif(sys.platform != "linux", reason="there are no executors elsewhere")
@pytest.mark.usefixtures("curl")
def test_a_seeded_session(folder):
    page, heading = "docs/evaluate/replay.md", "Seeded sessions"
    (folder / "packs").mkdir()
    (source,) = blocks(page, heading, "python")
    (folder / "packs" / "dice.py").write_text(source)
    (line,) = blocks(page, heading, "sh")
    with serving(line.strip(), folder) as banner:
        check_console(page, heading, folder, port_of(banner))


def test_a_receipt_is_verified_without_its_server(folder):
    page, heading = "docs/evaluate/receipts.md", "Make one"
    (line,), (program,) = blocks(page, heading, "sh"), blocks(page, heading, "python")
    with serving(line.strip(), folder, **BANK) as banner:
        (folder / "play.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        check_console(page, heading, folder, port_of(banner))
    shutil.rmtree(folder / ".toolpack-server")
    check_console(page, "Verify it", folder)


def test_tasks_in_one_sitting(folder):
    page, heading = "docs/write/tasks.md", "In one sitting"
    (folder / "packs").mkdir()
    pantry, program = blocks(page, heading, "python")
    (folder / "packs" / "pantry.py").write_text(pantry)
    check, run = (commands_and_outputs(block) for block in blocks(page, heading, "console"))
    assert run_console(check, folder) == [output for _, output in check]
    (line,) = blocks(page, heading, "sh")
    with serving(line.strip(), folder) as banner:
        (folder / "run.py").write_text(program.replace(":8000", f":{port_of(banner)}"))
        assert run_console(run, folder, port_of(banner)) == [output for _, output in run]


def test_partial_rewards(folder):
    task, test = blocks(TASKS, "An evaluator", "python")
    (pantry, _) = blocks(TASKS, "In one sitting", "python")
    for name, source in {"packs/pantry.py": f"{pantry}\n\n{task}", "tests/test_supper.py": test}.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(source)
    flags = "--pack-dir packs --packs pantry"
    commands = [
        ".venv/bin/pytest -q --pack-dir packs tests",
        f".venv/bin/toolpack-server check {flags} --tasks",
        f".venv/bin/toolpack-server audit {flags} --task pantry/supper",
    ]
    tested, checked, audited = run_console([(command, "") for command in commands], folder)
    assert "1 passed" in tested, tested
    assert checked.endswith("no problems.\n"), checked
    assert audited.endswith(": 0 with faults, 0 with weaknesses only.\n"), audited


def test_audit_in_five_minutes(folder):
    (folder / "packs").mkdir()
    (folder / "packs" / "pantry.py").write_text(blocks("docs/write/tasks.md", "In one sitting", "python")[0])
    (block,) = blocks("docs/write/tasks.md", "Audit", "console")
    ((command, expected),) = commands_and_outputs(block)
    (printed,) = run_console([(command, "")], folder)
    timing = re.compile(r" in [\d.]+ s \(\d+/s\)")
    assert timing.sub("", printed) == timing.sub("", expected)


@pytest.mark.parametrize(
    ("flags", "headings"), [([], ["Checks"]), (["--release"], ["Checks", "Checks before a release"])]
)
def test_ci_runs_the_test_command_and_the_other_checks(flags, headings):
    documented = [blocks("docs/internals/develop.md", heading, "sh") for heading in headings]
    commands = "".join(itertools.chain(blocks("README.md", "Test", "sh"), *documented))
    printing = [ROOT / ".ci" / "run", *flags, "--print"]
    output = subprocess.run(printing, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert output == commands


RUN = {
    ("README.md", "Start"),
    ("README.md", "A first session"),
    ("README.md", "Test"),
    (INSTALL, "The server"),
    (SESSION, "In Python"),
    (SESSION, "With curl"),
    (TOOLPACK, "Write it"),
    (TOOLPACK, "Try it"),
    (TOOLPACK, "Serve it"),
    (TASK, "Write it"),
    (TASK, "Try it"),
    (TASK, "Play it"),
    (WRITE_SKILL, "2. Write the functions"),
    (WRITE_SKILL, "3. Write the tasks"),
    ("docs/write/agentdojo.md", "Run AgentDojo against the server"),
    ("docs/reference/commands.md", "Call functions"),
    ("docs/reference/commands.md", "Look at sessions"),
    ("docs/reference/commands.md", "Serve what you are writing"),
    *(("docs/reference/client.md", heading) for heading in CLIENT_PROGRAMS),
    ("docs/internals/develop.md", "Checks"),
    ("docs/internals/develop.md", "Checks before a release"),
    ("docs/internals/features.md", "The smallest one"),  # in test_foreign_feature.py
    ("docs/operate/isolation.md", "Turn it on"),
    ("docs/operate/isolation.md", "Sandbox"),
    (MOVING, "A first world that moves"),  # in test_events.py
    (MOVING, "Test it"),
    (MOVING, "Rules"),
    (WORLDS, "Data frames"),
    (WORLDS, "Keep a database"),
    (WORLDS, "Keep files"),
    ("docs/reference/mcp.md", "A first call"),
    ("docs/reference/mcp.md", "Clients that launch servers"),
    ("docs/reference/mcp.md", "Content"),
    ("docs/operate/deploy.md", "Tokens"),
    ("docs/operate/deploy.md", "Health"),
    ("docs/reference/protocol.md", "Examples"),
    ("docs/train/rollouts.md", "A training loop"),
    ("docs/train/rollouts.md", "An environment"),
    ("docs/train/rollouts.md", "With TRL"),
    ("docs/train/rollouts.md", "Fork at a step"),
    ("docs/train/values.md", "One rollout"),
    ("docs/train/values.md", "Training with advantages"),
    ("docs/train/trainers.md", "ORS"),  # runs if the client is installed
    ("docs/train/trainers.md", "OpenEnv"),  # likewise
    ("docs/evaluate/a2a.md", "Judge an agent"),
    ("docs/evaluate/a2a.md", "Be a green agent"),
    (WHY, "A run"),
    ("docs/evaluate/faults.md", "In one sitting"),
    ("docs/evaluate/faults.md", "Variants of tasks"),
    ("docs/evaluate/faults.md", "Attack success"),
    ("docs/evaluate/replay.md", "Replay a session"),
    *(("docs/write/toolpacks.md", heading) for heading in LESSONS),
    (WORLDS, "Classes as environments"),
    *((PORT, heading) for heading in PORTS),
    (PORT, COMPARE),
    (PORT, "LangChain tools"),  # if its packages are installed
    (PORT, "Port a web application"),  # likewise
    ("docs/write/toolpacks.md", "Find mistakes"),
    (WORLDS, "Packages"),
    (PORT_SKILL, "2. Write the toolpack"),
    (PORT_SKILL, "3. Prove that it is the same"),
    (TASKS, "In one sitting"),
    (TASKS, "An evaluator"),
    ("docs/write/tasks.md", "Audit"),
    ("docs/evaluate/replay.md", "Seeded sessions"),
    ("docs/evaluate/replay.md", "Bundles"),
    ("docs/evaluate/receipts.md", "Make one"),
    ("docs/evaluate/receipts.md", "Verify it"),
    ("docs/internals/conform.md", "Check a server"),
    ("docs/internals/store.md", "Test it"),  # in tests/stores/test_store_contract.py
    ("docs/internals/benchmarks.md", "BFCL"),  # in tests/bundled/test_bfcl.py, if its packages are installed
    ("docs/internals/benchmarks.md", "tau2"),  # in tests/bundled/test_tau2.py, likewise
    (USERS, "Both sides of a conversation"),
}
NOT_RUN = {
    ("AGENTS.md", "Set up"),
    ("AGENTS.md", "Check a change"),
    (PORT_SKILL, "4. Port the tasks"),
    ("docs/operate/deploy.md", "Containers"),
    ("docs/operate/deploy.md", "Kubernetes"),
    ("docs/operate/telemetry.md", "Try it"),
}
ONLY_SHOWN = {  # text that no program reads: maps, and the output of a server after 2,000 calls
    (PORT, COMPARE),  # the output for a port with a mistake
    ("docs/internals/develop.md", "Where things are"),
    ("docs/internals/develop.md", "How one request travels"),
    ("docs/operate/operate.md", "Metrics"),
    ("docs/operate/operate.md", "Logs"),
    ("docs/operate/operate.md", "What is slow"),  # queries for Prometheus
    ("docs/internals/benchmarks.md", "BFCL"),  # its installation
    ("docs/internals/benchmarks.md", "tau2"),  # likewise
    (USERS, "Both sides of a conversation"),  # a script that runs like the programs beside it
    ("docs/train/trainers.md", "NeMo Gym"),  # lines of its configuration
    # The commands of tools/audits.py, which writes the page and takes hours.
    *(("docs/write/audits.md", collection) for collection in ("Bundled", "AgentDojo", "BFCL", "tau2")),
    ("docs/operate/deploy.md", "Containers"),  # a Dockerfile, which tools/container.py builds
    ("docs/operate/deploy.md", "Kubernetes"),  # a file for Kustomize
}


def test_every_code_block_is_run_or_named_here():
    fences = [line for text in PAGES.values() for line in re.findall(r"^ *(```.*)$", text, re.MULTILINE)]
    assert set(fences) == {"```", "```sh", "```console", "```python", "```text", "```toml"}
    locations = {
        (page, heading) for page, text in PAGES.items() for heading in re.findall(r"^## (.*)$", text, re.MULTILINE)
    }
    assert {location for location in locations if blocks(*location, "sh", "console", "python")} == RUN | NOT_RUN
    printed = {
        (INSTALL, "The server"),
        (SESSION, "In Python"),
        (TASK, "Play it"),
        ("docs/reference/client.md", "A tree search"),
        ("docs/train/rollouts.md", "A training loop"),
    }
    printed.add(("docs/evaluate/replay.md", "Replay a session"))
    printed |= {("docs/train/rollouts.md", "An environment"), ("docs/train/rollouts.md", "Fork at a step")}
    printed |= {("docs/train/values.md", "One rollout"), ("docs/train/values.md", "Training with advantages")}
    printed |= {
        ("README.md", "A first session"),
        ("docs/train/trainers.md", "ORS"),
        ("docs/train/trainers.md", "OpenEnv"),
    }
    printed |= {(WORLDS, "Packages"), ("docs/evaluate/a2a.md", "Be a green agent")}
    printed |= {("docs/evaluate/faults.md", "In one sitting"), ("docs/evaluate/faults.md", "Variants of tasks")}
    printed |= {(WHY, "A run"), (MOVING, "A first world that moves")}
    assert {location for location in locations if blocks(*location, "text")} == ONLY_SHOWN | printed
    outside = [line for location in NOT_RUN for block in blocks(*location, "sh") for line in block.splitlines()]
    assert all(
        line.startswith(("docker ", "export ", "kubectl ", "python3 -m venv ", ".venv/bin/", ".ci/run"))
        for line in outside
    )


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 120


def prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """Return the fragments of a page's headings for links, as GitHub and most other tools generate them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(PAGES[page])))


def test_every_relative_link_points_to_a_file_and_a_heading():
    broken = []
    for page in PAGES:
        for link in links(page):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, fragment = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            name = str(target.resolve().relative_to(ROOT))
            if not target.is_file() or (fragment and fragment not in anchors(PAGES[name])):
                broken.append(f"{page}: {link}")
    assert not broken


def test_the_index_links_to_every_page():
    docs = {page for page in PAGES if page.startswith("docs/")} - {"docs/index.md"}
    linked = {f"docs/{link.partition('#')[0]}" for link in links("docs/index.md")}
    assert linked == docs
    internals = {page for page in docs if page.startswith("docs/internals/")}
    assert {link.partition("#")[0] for link in links("CONTRIBUTING.md")} >= internals - {
        f"docs/internals/{name}.md" for name in ("features", "conform", "benchmarks")
    }
    assert "docs/index.md" in links("README.md")


def test_llms_txt_is_made_from_the_index():
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == llms_text()


def test_the_map_of_the_code_shows_every_package_and_module():
    (expected,) = blocks("docs/internals/develop.md", "Where things are", "text")
    present = {
        path.name + "/" if path.is_dir() else path.stem
        for path in SERVER.iterdir()
        if not path.name.startswith("__") and (path.suffix == ".py" or any(path.glob("*.*")))
    }
    expected = expected.partition("\ntoolpacks/")[0]
    assert set(re.findall(r"^  (\w+/?)", expected, re.MULTILINE)) == present
    features = {f"{path.parent.name}/" for path in (SERVER / "features").glob("*/__init__.py")}
    assert set(re.findall(r"^    (\w+/)", expected, re.MULTILINE)) == features


def test_prose_fits_into_120_columns():
    lines = [(page, line) for page, text in PAGES.items() for line in prose(text).splitlines()]
    assert [(page, line) for page, line in lines if len(line) > 120 and not line.startswith("|")] == []
