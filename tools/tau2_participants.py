"""Test of restarted participants, with tau2's own runs in telecom: an agent and a user play, and one is killed.

`python -m tools.tau2_participants` starts a server and plays all 2,285 runs. Names of tasks select runs; `--url` uses a
running server. The agent and the user are two processes. Each knows only its own address, and they take turns with
`say` and `listen`. One of them is killed by SIGKILL: before a call, while it waits for the answer, or after the answer.
A new process then plays this participant from the beginning, with the same `call_id`s. The run must pass, and each call
must be recorded once, in tau2's order.
"""

import argparse
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from server_process import served

from toolpack_server.client import AgentClient, Client

TIMEOUT_SECONDS = 600.0  # long, because the machine may be busy
MOMENTS = ("before the call", "while it waits for the answer", "after the answer")


def play_part(address, name, calls, death=None):
    """Play a participant's part from the beginning.

    Args:
        address: URL of the participant's address.
        name: Name of the participant.
        calls: The calls of all participants, in order.
        death: The number of a call, and the moment of `MOMENTS` at which the process kills itself; None for never.
    """
    with AgentClient(address) as client:
        for number, call in enumerate(calls):
            if call["by"] != name:
                continue
            if number and calls[number - 1]["by"] != name:
                wait_for(client, f"{number - 1} is done")
            die_when(death == (number, MOMENTS[0]))
            if death == (number, MOMENTS[1]):
                send_only(address, call, f"call-{number}")
            client.run_function(call["function"], call["kwargs"], call_id=f"call-{number}")
            die_when(death == (number, MOMENTS[2]))
            if number + 1 == len(calls) or calls[number + 1]["by"] != name:
                client.say(f"{number} is done", call_id=f"say-{number}")
        if name == "user":  # the user ends the dialogue
            if calls[-1]["by"] != name:
                wait_for(client, f"{len(calls) - 1} is done")
            client.submit_answer("Thank you, that was all.")


def wait_for(client, text):
    """Listen until another participant says this. A restarted participant receives the whole conversation."""
    last, deadline = -1, time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for message in client.listen(after=last, wait_seconds=5)["messages"]:
            last = message["index"]
            if message["content"] == text:
                return
    raise TimeoutError(text)


def die_when(condition):
    if condition:
        os.kill(os.getpid(), signal.SIGKILL)


def send_only(address, call, call_id):
    """Send a call, and die without waiting for the answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    params = {"function": call["function"], "kwargs": call["kwargs"], "call_id": call_id}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})
    connection.request("POST", parts.path, body, {"Content-Type": "application/json"})
    die_when(True)


def start_process(address, name, calls, death=None):
    """Start a participant's process, and return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        play_part(address, name, calls, death)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def play_run(client, url, task):
    """Play tau2's own run of a task. Yield the kill as a text, then each problem."""
    session = client.create_session(task=f"tau2-telecom/{task}")
    calls = client.get_solution(session["session_id"])["calls"]
    rng = random.Random(task)
    death = rng.randrange(len(calls)), rng.choice(MOMENTS)
    victim = calls[death[0]]["by"]
    addresses = {name: url + paths["agent_path"] for name, paths in session.get("participants").items()}
    running = {
        start_process(address, name, calls, death if name == victim else None): name
        for name, address in addresses.items()
    }
    killed, failed = 0, False
    while running:
        process, status = os.wait()
        name = running.pop(process)
        if os.WIFSIGNALED(status) and name == victim and not killed:
            killed = 1
            running[start_process(addresses[name], name, calls)] = name
        elif status:
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    yield f"{victim} killed {death[1]}"
    if failed or not killed:
        yield "a participant has failed" if failed else "no participant was killed"
    records = client.get_trace(session["session_id"], limit=1000)
    calls_made = [[each["by"], each["function"], each["kwargs"]] for each in records if each["kind"] == "call"]
    if calls_made != [[call["by"], call["function"], call["kwargs"]] for call in calls]:
        yield f"these calls were recorded: {calls_made}"
    verdict = client.evaluate_session(session["session_id"])
    if not verdict["passed"]:
        yield f"these checks failed: {[check['name'] for check in verdict['checks'] if not check['passed']]}"
    client.close_session(session["session_id"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="URL of a running server; by default, the program starts one")
    parser.add_argument("tasks", nargs="*", help="names of tasks, such as task_0; by default, all")
    options = parser.parse_args()
    if options.url:
        sys.exit(play_all(options.url, options.tasks))
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), "--packs", "tau2-telecom") as server:
        sys.exit(play_all(server.url, options.tasks))


def play_all(url, tasks):
    """Play the runs of these tasks, or of all tasks. Return 1 if a run failed, or else 0."""
    began, disturbances, wrong = time.monotonic(), Counter(), 0
    with Client(url) as client:
        names = tasks or [
            f"task_{number}" for number in range(client.list_tasks(toolpack="tau2-telecom", limit=1)["total"])
        ]
        for task in names:
            disturbance, *failures = play_run(client, url, task)
            disturbances[disturbance] += 1
            wrong += bool(failures)
            for problem in failures:
                print(f"{task}, {disturbance}: {problem[:1000]}", flush=True)
    summary = ", ".join(f"{count} with the {disturbance}" for disturbance, count in sorted(disturbances.items()))
    print(f"{len(names)} runs in {time.monotonic() - began:.0f} s: {wrong} wrong; {summary}")
    return min(wrong, 1)


if __name__ == "__main__":
    main()
