"""Tasks in Harbor's format: Harbor must load the folders, and reward solutions. Agents may reach only their tools."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import command_line
import harbor
import httpx
import pytest
import redis_server
import serving
from patience import PATIENCE

PROGRAM = """
import json, sys
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition
for folder in json.load(sys.stdin):
    task = Task(folder)
    (server,) = task.config.environment.mcp_servers
    config = task.config
    definition = resolve_verifier_environment_definition(config, task.paths)
    (collect,), (artifact,) = config.verifier.collect, config.artifacts
    shown = [definition.directory.name, definition.bundled_tests, collect.service, artifact.service, artifact.source]
    print(json.dumps([Task.is_valid_dir(folder), task.name, task.instruction, server.model_dump(mode="json"), shown]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = tmp_path_factory.mktemp("harbor") / "tasks"
    result = command_line.run("tasks", "--harbor", str(written), "--packs", "bank")
    assert result.stdout == f"12 tasks in {written}\n", result.stderr
    return written


@contextlib.contextmanager
def task_service(folder, tmp_path):
    """Start the service next to the agent's container, without containers.

    Yield its URL and a function that runs scripts.
    """
    port, own = redis_server.free_port(), redis_server.free_port()
    settings = (folder / "environment/docker-compose.yaml").read_text()
    assignments = dict(
        line.strip().split(": ", 1) for line in settings.splitlines() if '": ' not in line and ': "' in line
    )
    variables = {name: json.loads(assignments[name]) for name in ("TASK", "PACKS", "SECRET")}
    bin_folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([bin_folder, os.environ["PATH"]])
    process = subprocess.Popen(
        [sys.executable, str(folder / "environment/environment.py")],
        env={**os.environ, **variables, "PATH": path, "PORT": str(port), "SERVER_PORT": str(own)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"

    def run(script):
        if script == "tests/test.sh":
            collect = [sys.executable, str(folder / "environment/environment.py"), str(tmp_path / "verdict")]
            subprocess.run(collect, env={**os.environ, **variables, "PORT": str(port)}, check=True)
        subprocess.run(
            ["bash", str(folder / script)],
            env={**os.environ, "TOOLPACK_URL": url, "LOGS": str(tmp_path), "VERDICT": str(tmp_path / "verdict")},
            check=True,
            capture_output=True,
        )
        reward = tmp_path / "reward.txt"
        return float(reward.read_text()) if reward.exists() else None

    def healthy():
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/health").status_code == 200

    try:
        serving.wait_until(healthy, "the task's environment")
        yield url, run
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_harbor_loads_the_folders(folder):
    harbor.required()
    folders = sorted(map(str, folder.iterdir()))
    done = subprocess.run(
        [harbor.PYTHON, "-c", PROGRAM], input=json.dumps(folders), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tasks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [valid for valid, *_ in tasks] == [True] * 12
    (save,) = [each for each in tasks if each[1] == "toolpack-server/bank-save-300"]
    assert save[2].startswith("Please put 300 euros aside on my savings account.\n")
    assert (save[3]["transport"], save[3]["url"]) == ("streamable-http", "http://toolpack:8000/mcp")
    assert save[4] == ["tests", True, "toolpack", "toolpack", "/tmp/verdict"]


@pytest.mark.heavy
def test_solution_is_rewarded_and_no_action_is_not(folder, tmp_path):
    for number, task in enumerate(sorted(folder.iterdir())):
        logs = tmp_path / str(number)
        logs.mkdir()
        with task_service(task, logs) as (_, run):
            assert run("tests/test.sh") < 1.0, task
            run("solution/solve.sh")
            assert run("tests/test.sh") == 1.0, task


@pytest.mark.heavy
def test_agent_reaches_only_its_tools(folder, tmp_path):
    with task_service(folder / "bank-save-300", tmp_path) as (url, _):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        tools = httpx.post(f"{url}/mcp", json=body).json()["result"]["tools"]
        assert tools[-1]["name"] == "submit_answer"
        assert httpx.get(f"{url}/mcp").status_code == 405
        for path in ("/rpc", "/reward", "/mcp?task=bank/balance", "/mcp/../rpc", "/metrics"):
            reply = httpx.post(url + path, json={**body, "method": "list_sessions"})
            assert (reply.status_code, reply.text) == (404, "Not found: use /mcp.")
        for length, status in [("-1", 411), ("x", 411), ("²", 411), (str(2**30), 413), ("9" * 5000, 413)]:
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port), PATIENCE) as connection:
                connection.sendall(f"POST /mcp HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
                assert connection.makefile("rb").readline().split()[1] == str(status).encode(), length


def test_agents_container_has_neither_solution_nor_secret(folder):
    for task in folder.iterdir():
        secret = json.loads((task / "environment/docker-compose.yaml").read_text().partition("SECRET: ")[2].split()[0])
        for seen in ("instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh", "tests/Dockerfile"):
            assert secret not in (task / seen).read_text()
        config = tomllib.loads((task / "task.toml").read_text())
        # An agent with a shell can't replace the verifier's programs.
        assert config["verifier"]["environment_mode"] == "separate"
        assert "COPY" not in (task / "environment/Dockerfile").read_text()
        assert os.access(task / "tests/test.sh", os.X_OK)


def test_dollar_signs_are_escaped_for_compose(tmp_path):
    flags = ("--packs", "bank", "--task", "bank/save-300", "--image", "here/$USER:1")
    assert command_line.run("tasks", "--harbor", str(tmp_path), *flags).returncode == 0
    assert 'image: "here/$$USER:1"' in (tmp_path / "bank-save-300/environment/docker-compose.yaml").read_text()


def test_invalid_arguments_are_errors_without_a_traceback(folder, tmp_path):
    again = command_line.run("tasks", "--harbor", str(folder), "--packs", "bank", "--task", "bank/save-300")
    assert again.returncode == 1
    assert "bank-save-300 exists already: remove it, or choose another folder." in again.stderr
    unknown = command_line.run("tasks", "--harbor", str(tmp_path), "--packs", "bank", "--task", "bank/no")
    assert "There is no task bank/no" in unknown.stderr
    missing = command_line.run("tasks", "--harbor", str(tmp_path), "--packs", "nope")
    assert missing.returncode
    assert "Traceback" not in missing.stderr
