"""Start the server and the A2A agents of these tests, each in its own process."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

TASK = "bank/save-300"
PAIR = """
from toolpack_server import Toolpack

toolpack = Toolpack("pair")


@toolpack.task("talk", "Talk.", participants={"user": {"prompt": "Talk."}})
def talk(rollout) -> bool:
    return False
"""
PROGRAM = Path(__file__).with_name("a2a_agents.py")


@contextlib.contextmanager
def serve_agents(server):
    session = server.rpc("create_session", task=TASK)
    solutions = {TASK: server.rpc("get_solution", session_id=session["session_id"])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, PROGRAM], text=True, **pipes) as process:
        try:
            print(json.dumps(solutions), file=process.stdin, flush=True)
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()
