"""Fuzz test of costs: no request may cost the server much more than it costs the sender.

The measure is the processor time of the whole server, so other load on the machine doesn't matter. A request may take a
fixed time, and some time for each kilobyte of its body. A method that reads, replays or moves a session may also take
some time for each kilobyte of the requests that filled the session. SQL may compute up to its deadline, so the tests
send only SQL that ends soon.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import serving

from toolpack_server.packs.loading import load_catalog
from tools.fuzz.oracle import require

TOOLPACKS = ("bank", "workspace", "office", "errands")
FIXED_SECONDS = 0.5
SECONDS_PER_KB = 0.01
SECONDS_PER_KB_OF_SESSION = 0.0005
CALLS = 60  # calls of the session with many large calls
RULES = [{"replace": {"x": "xy" * 300}, "name": str(number)} for number in range(8)]
TEXTS = ["x", "a ", "'", '"', "%_", "**/*/", "/* ", "[a-", "$(", "1", "é", "\\"]  # repeated up to the size
COMMANDS = ["ls {}", "cat {}", "grep x {}", "find . -name {}", "echo {} | sort | uniq -c", "echo {} | wc"]


class Meter:
    """Sends requests, and checks that each costs the server little enough.

    Attributes:
        costs: For each name, the processor time of the most expensive request in seconds, and its size in kilobytes.
    """

    def __init__(self, bench: serving.Bench) -> None:
        self.costs: dict[str, tuple[float, float]] = {}
        self._bench = bench

    def send(
        self, name: str, method: str, /, *, agent_key: str | None = None, created_kb: float = 0.0, **params: Any
    ) -> Any:
        """Send a request, and return the answer.

        Args:
            name: The name under which the cost is stored.
            method: The method.
            agent_key: Send the request to this agent's address.
            created_kb: Kilobytes of the requests that filled the session.
            params: The parameters.
        """
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        began = time.process_time()
        reply = self._bench.answer(body, agent_key=agent_key)
        seconds, size = time.process_time() - began, len(body) / 1000
        if seconds > self.costs.get(name, (-1.0, 0.0))[0]:
            self.costs[name] = seconds, size
        max_seconds = FIXED_SECONDS + SECONDS_PER_KB * size + SECONDS_PER_KB_OF_SESSION * created_kb
        require(seconds < max_seconds, f"{size:.1f} KB cost {seconds:.1f} s of the processor", name, body[:300])
        answer = json.loads(reply)
        require(answer.get("error", {}).get("code") != -32603, "an internal error", name, answer)
        return answer


def fuzz_costs(size: int = 100_000) -> dict[str, tuple[float, float]]:
    """Call all methods, and all functions of the bundled toolpacks, with texts of this size.

    Returns:
        The highest cost of each: the processor time in seconds, and the size of the request in kilobytes.
    """
    with serving.Bench(load_catalog((), TOOLPACKS)) as bench:
        meter = Meter(bench)
        for toolpack in TOOLPACKS:
            _functions(bench, meter, toolpack, size)
        _shell(bench, meter, size)
        _rules(bench, meter, size)
        _methods(bench, meter, size)
        return meter.costs


def _functions(bench: serving.Bench, meter: Meter, toolpack: str, size: int) -> None:
    for function in bench.rpc("list_functions", session_id=bench.create(toolpack))["result"]:
        for text in TEXTS:
            session = bench.create(toolpack)
            kwargs = _arguments(function["parameters"], text * (size // len(text)))
            name = f"{toolpack}.{function['name']}"
            meter.send(name, "run_function", session_id=session, function=function["name"], kwargs=kwargs)
            bench.rpc("close_session", session_id=session)


def _arguments(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Return arguments that match a function's schema, with the text wherever the schema allows a text."""
    arguments = {}
    for name, parameter in schema.get("properties", {}).items():
        kinds = [each.get("type") for each in parameter.get("anyOf", [parameter])]
        if "string" in kinds:
            arguments[name] = text
        elif "array" in kinds:
            arguments[name] = [text[:100]] * max(len(text) // 100, 1)
        elif name in schema.get("required", ()):
            arguments[name] = True if "boolean" in kinds else 10**9
    return arguments


def _shell(bench: serving.Bench, meter: Meter, size: int) -> None:
    """Run commands in the shell of `office`, in deeply nested folders."""
    session = bench.create("office")
    folder = ""
    for _ in range(30):
        folder += "d/"
        bench.call(session, "write_paper", path=f"{folder}x.txt", text="x")
    for command in COMMANDS:
        for text in ("**/*/" * 30, "*/" * 30 + "*", "[a-z]*/" * 20, "x" * size):
            command_line = command.format(text)
            meter.send("office.shell, folders", "run_function", session_id=session, function="shell",
                       kwargs={"command": command_line})  # fmt: skip


def _rules(bench: serving.Bench, meter: Meter, size: int) -> None:
    """Let rules multiply the length of an agent's results: in calls, in a replay and in an imported bundle."""
    params = {"toolpacks": ["workspace"], "perturbations": {"rules": RULES}}
    session = bench.rpc("create_session", **params)
    key, session_id = session["agent_path"].removeprefix("/agents/"), session["session_id"]
    for name in ("create_file", "search_files"):
        kwargs = {"name": "x", "content": "x" * size} if name == "create_file" else {"query": "x"}
        envelope = meter.send("rules", "run_function", agent_key=key, function=name, kwargs=kwargs)["result"]
        require("TooLargeError" in str(envelope["error"]), "the rules didn't make the answer too long", envelope)
    meter.send("rules, again", "replay_session", session_id=session_id, created_kb=size / 1000)
    bundle = bench.rpc("export_bundle", session_id=session_id)["bundle"]
    meter.send("rules of a stranger", "import_bundle", bundle=bundle, mode="replay")


def _methods(bench: serving.Bench, meter: Meter, size: int) -> None:
    for method, params in _requests(bench, size):
        created_kb = CALLS * 2 * size / 1000 if "session_id" in params or "mode" in params else 0.0
        meter.send(method, method, created_kb=created_kb, **params)
    missing = {method.declared.name for method in serving.CLIENTS_METHODS} - meter.costs.keys()
    require(not missing, "these methods weren't called", missing)


def _requests(bench: serving.Bench, size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield requests of all methods, most of them on a session with many large calls."""
    session, other = bench.create("workspace"), bench.create("bank")
    task = bench.rpc("create_session", task="bank/pay-dentist")["session_id"]
    for number in range(CALLS):
        file = {"name": f"{number}.txt", "content": "x" * 2 * size}
        bench.call(session, "create_file", **file)
    text, with_session, with_task = "x" * size, {"session_id": session}, {"session_id": task}
    yield "list_toolpacks", {}
    yield "rpc.discover", {}
    yield "list_tasks", {"tags": [text]}
    yield "get_task", {"task": text}
    yield "create_session", {"toolpacks": [*TOOLPACKS], "labels": {text: text}}
    yield "create_session", {"toolpacks": [*TOOLPACKS], "environment": {"bank": {text: text}}}
    yield "create_session", {"toolpacks": ["bank"], "perturbations": {"rules": [{"error": text}] * 50}}
    yield "list_functions", {**with_session, "format": "mcp"}
    yield "run_function", {**with_session, "function": "search_files", "kwargs": {"query": "x"}}
    yield "get_session", with_session
    yield "get_environment", with_session
    yield "get_environment", {**with_session, "pointer": "/workspace" + "/" * size}
    yield "diff_environment", {**with_session, "from_version": 0}
    yield "diff_environment", {**with_session, "to_session_id": other}
    yield "summarize_changes", {**with_session, "from_version": 0}
    yield "get_trace", {**with_session, "limit": 1000}
    yield "get_environment", {**with_session, "format": "snapshot"}
    yield "fork_session", {**with_session, "count": 20}
    yield "add_message", {**with_session, "role": "user", "content": text}
    yield "submit_answer", {**with_task, "answer": text}
    created = bench.rpc("create_session", toolpacks=["bank"], participants={"user": {}})
    with_participant = {"session_id": created["session_id"]}
    yield "add_turn", {**with_participant, "participant": "user", "metadata": {"text": text}}
    yield "fail_participant", {**with_participant, "participant": "user", "reason": "nonsense", "message": text}
    yield "create_session", {"toolpacks": ["errands"], "events": [{"at": 60, "notice": text}]}
    rules = [{"every": 1, "notice": "x" * 200}] * 40
    with_events = {"session_id": bench.rpc("create_session", toolpacks=["errands"], events=rules)["session_id"]}
    yield "run_function", {**with_events, "function": "wait", "kwargs": {"until_something_happens": False}}
    yield "get_events", with_events
    yield "get_solution", with_task
    yield "review_session", with_task
    yield "evaluate_session", with_task
    yield "summarize_sessions", {"labels": {"of": text}}
    yield "summarize_sessions", {"labels": {"of": text}, "evaluate": True}
    yield "list_sessions", {"labels": {"of": text}}
    yield "replay_session", with_session
    yield "export_bundle", with_session
    yield "import_bundle", {"bundle": bench.rpc("export_bundle", **with_session)["bundle"], "mode": "replay"}
    yield "import_bundle", {"bundle": text}
    yield "reset_session", {**with_session, "version": 0}
    yield "close_session", {"session_id": other}
    yield "close_session", {"labels": {"of": text}}
