"""tau2's own runs in telecom, played by two participants in separate processes, one of which is killed.

`python -m tools.tau2_participants` starts a server and plays all 2,285 runs. Names of tasks after it select runs;
`--url` uses a running server. The agent and the user know only their own addresses, and take turns with `say` and
`listen`. One of them is killed by SIGKILL: before a call, while it waits for the answer, or after it. Another process
then starts from the beginning with the same `call_id`s. The run must pass, and each call must be recorded once, in
tau2's order.
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

PATIENCE = 600.0  # for a busy machine
MOMENTS = ("before the call", "while it waits for the answer", "after the answer")


def take_part(address, name, calls, fatal=None):
    """Play a participant's part from the beginning. `fatal` is the number of a call, and the moment to die at it."""
    with AgentClient(address) as client:
        for number, call in enumerate(calls):
            if call["by"] != name:
                continue
            if number and calls[number - 1]["by"] != name:
                wait_for(client, f"{number - 1} is done")
            die_if(fatal == (number, MOMENTS[0]))
            if fatal == (number, MOMENTS[1]):
                send_only(address, call, f"call-{number}")
            client.run_function(call["function"], call["kwargs"], call_id=f"call-{number}")
            die_if(fatal == (number, MOMENTS[2]))
            if number + 1 == len(calls) or calls[number + 1]["by"] != name:
                client.say(f"{number} is done", call_id=f"say-{number}")
        if name == "user":  # the user ends the dialogue
            if calls[-1]["by"] != name:
                wait_for(client, f"{len(calls) - 1} is done")
            client.submit_answer("Thank you, that was all.")


def wait_for(client, text):
    """Listen until another participant says this. A restarted participant receives the whole conversation."""
    last, deadline = -1, time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for message in client.listen(after=last, wait_seconds=5)["messages"]:
            last = message["index"]
            if message["content"] == text:
                return
    raise TimeoutError(text)


def die_if(so):
    if so:
        os.kill(os.getpid(), signal.SIGKILL)


def send_only(address, call, call_id):
    """Send a call, and die without waiting for the answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    params = {"function": call["function"], "kwargs": call["kwargs"], "call_id": call_id}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})
    connection.request("POST", parts.path, body, {"Content-Type": "application/json"})
    die_if(True)


def started(address, name, calls, fatal=None):
    """Start a participant's process, and return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        take_part(address, name, calls, fatal)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def problems(client, url, task):
    """Play tau2's own run of a task. Yield the disturbance, then the problems."""
    session = client.create_session(task=f"tau2-telecom/{task}")
    calls = client.get_solution(session["session_id"])["calls"]
    chance = random.Random(task)
    fatal = chance.randrange(len(calls)), chance.choice(MOMENTS)
    victim = calls[fatal[0]]["by"]
    addresses = {name: url + paths["agent_path"] for name, paths in session.get("participants").items()}
    running = {started(addresses[name], name, calls, fatal if name == victim else None): name for name in addresses}
    killed, failed = 0, False
    while running:
        process, status = os.wait()
        name = running.pop(process)
        if os.WIFSIGNALED(status) and name == victim and not killed:
            killed = 1
            running[started(addresses[name], name, calls)] = name
        elif status:
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    yield f"{victim} killed {fatal[1]}"
    if failed or not killed:
        yield "a participant has failed" if failed else "nobody was killed"
    recorded = client.get_trace(session["session_id"], limit=1000)
    calls_made = [[each["by"], each["function"], each["kwargs"]] for each in recorded if each["kind"] == "call"]
    if calls_made != [[call["by"], call["function"], call["kwargs"]] for call in calls]:
        yield f"recorded are {calls_made}"
    verdict = client.evaluate_session(session["session_id"])
    if not verdict["passed"]:
        yield f"it doesn't pass: {[check['name'] for check in verdict['checks'] if not check['passed']]}"
    client.close_session(session["session_id"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("tasks", nargs="*")
    options = parser.parse_args()
    if options.url:
        sys.exit(make_all(options.url, options.tasks))
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), "--packs", "tau2-telecom") as server:
        sys.exit(make_all(server.url, options.tasks))


def make_all(url, tasks):
    """Play the runs of these tasks, or of all, and return the number of failed runs."""
    began, disturbed, wrong = time.monotonic(), Counter(), 0
    with Client(url) as client:
        names = tasks or [
            f"task_{number}" for number in range(client.list_tasks(toolpack="tau2-telecom", limit=1)["total"])
        ]
        for task in names:
            how, *failures = problems(client, url, task)
            disturbed[how] += 1
            wrong += bool(failures)
            for problem in failures:
                print(f"{task}, {how}: {problem[:1000]}", flush=True)
    hows = ", ".join(f"{count} with the {how}" for how, count in sorted(disturbed.items()))
    print(f"{len(names)} runs in {time.monotonic() - began:.0f} s: {wrong} wrong; {hows}")
    return min(wrong, 1)


if __name__ == "__main__":
    main()
