"""Fuzz test of costs: requests that cost a server much more than their sender, limited per kilobyte sent.

The measure is the processor time of the whole server, so other load on the machine doesn't matter. A request may take a
fixed time, and more for each kilobyte of it. A method that reads, replays or moves a session may also take more for
each kilobyte that created the session. SQL may compute up to its deadline, so the SQL here ends by itself.
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
CALLS = 60
RULES = [{"replace": {"x": "xy" * 300}, "name": str(number)} for number in range(8)]
TEXTS = ["x", "a ", "'", '"', "%_", "**/*/", "/* ", "[a-", "$(", "1", "é", "\\"]  # each is repeated
COMMANDS = ["ls {}", "cat {}", "grep x {}", "find . -name {}", "echo {} | sort | uniq -c", "echo {} | wc"]


class Meter:
    """Measures the cost of requests.

    Attributes:
        spent: For each name, the processor time in seconds, and the size in kilobytes.
    """

    def __init__(self, bench: serving.Bench) -> None:
        self.spent: dict[str, tuple[float, float]] = {}
        self._bench = bench

    def send(
        self, name: str, method: str, /, *, agent_key: str | None = None, created_kb: float = 0.0, **params: Any
    ) -> Any:
        """Send a request and return its reply. `created_kb` is the number of kilobytes that created its session."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        began = time.process_time()
        reply = self._bench.answer(body, agent_key=agent_key)
        seconds, size = time.process_time() - began, len(body) / 1000
        if seconds > self.spent.get(name, (-1.0, 0.0))[0]:
            self.spent[name] = seconds, size
        most = FIXED_SECONDS + SECONDS_PER_KB * size + SECONDS_PER_KB_OF_SESSION * created_kb
        require(seconds < most, f"{size:.1f} KB cost {seconds:.1f} s of the processor", name, body[:300])
        answer = json.loads(reply)
        require(answer.get("error", {}).get("code") != -32603, "an internal error", name, answer)
        return answer


def fuzz_costs(size: int = 100_000) -> dict[str, tuple[float, float]]:
    """Send all methods and all functions of bundled toolpacks texts of this size. Return the highest cost of each."""
    with serving.Bench(load_catalog((), TOOLPACKS)) as bench:
        meter = Meter(bench)
        for toolpack in TOOLPACKS:
            _functions(bench, meter, toolpack, size)
        _shell(bench, meter, size)
        _rules(bench, meter, size)
        _methods(bench, meter, size)
        return meter.spent


def _functions(bench: serving.Bench, meter: Meter, toolpack: str, size: int) -> None:
    for function in bench.rpc("list_functions", session_id=bench.create(toolpack))["result"]:
        for text in TEXTS:
            session = bench.create(toolpack)
            kwargs = _arguments(function["parameters"], text * (size // len(text)))
            name = f"{toolpack}.{function['name']}"
            meter.send(name, "run_function", session_id=session, function=function["name"], kwargs=kwargs)
            bench.rpc("close_session", session_id=session)


def _arguments(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Return arguments that match a function's schema, with the text in every possible place."""
    found = {}
    for name, wanted in schema.get("properties", {}).items():
        kinds = [each.get("type") for each in wanted.get("anyOf", [wanted])]
        if "string" in kinds:
            found[name] = text
        elif "array" in kinds:
            found[name] = [text[:100]] * max(len(text) // 100, 1)
        elif name in schema.get("required", ()):
            found[name] = True if "boolean" in kinds else 10**9
    return found


def _shell(bench: serving.Bench, meter: Meter, size: int) -> None:
    """Run commands in the shell of `office`, in deeply nested folders."""
    session = bench.create("office")
    folder = ""
    for _ in range(30):
        folder += "d/"
        bench.call(session, "write_paper", path=f"{folder}x.txt", text="x")
    for command in COMMANDS:
        for text in ("**/*/" * 30, "*/" * 30 + "*", "[a-z]*/" * 20, "x" * size):
            sent = command.format(text)
            meter.send("office.shell, folders", "run_function", session_id=session, function="shell",
                       kwargs={"command": sent})  # fmt: skip


def _rules(bench: serving.Bench, meter: Meter, size: int) -> None:
    """Let rules multiply an agent's results, also in a replay and in a bundle of another user."""
    given = {"toolpacks": ["workspace"], "perturbations": {"rules": RULES}}
    session = bench.rpc("create_session", **given)
    key, session_id = session["agent_path"].removeprefix("/agents/"), session["session_id"]
    for name in ("create_file", "search_files"):
        kwargs = {"name": "x", "content": "x" * size} if name == "create_file" else {"query": "x"}
        told = meter.send("rules", "run_function", agent_key=key, function=name, kwargs=kwargs)["result"]
        require("TooLargeError" in str(told["error"]), "no answer was too long, despite the rules", told)
    meter.send("rules, again", "replay_session", session_id=session_id, created_kb=size / 1000)
    bundle = bench.rpc("export_bundle", session_id=session_id)["bundle"]
    meter.send("rules of a stranger", "import_bundle", bundle=bundle, mode="replay")


def _methods(bench: serving.Bench, meter: Meter, size: int) -> None:
    for method, params in _requests(bench, size):
        created_kb = CALLS * 2 * size / 1000 if "session_id" in params or "mode" in params else 0.0
        meter.send(method, method, created_kb=created_kb, **params)
    missing = {method.declared.name for method in serving.CLIENTS_METHODS} - meter.spent.keys()
    require(not missing, "methods whose cost is unknown", missing)


def _requests(bench: serving.Bench, size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return requests of all methods, most of them on a session with many large calls."""
    session, other = bench.create("workspace"), bench.create("bank")
    task = bench.rpc("create_session", task="bank/pay-dentist")["session_id"]
    for number in range(CALLS):
        file = {"name": f"{number}.txt", "content": "x" * 2 * size}
        bench.call(session, "create_file", **file)
    text, of, about = "x" * size, {"session_id": session}, {"session_id": task}
    yield "list_toolpacks", {}
    yield "rpc.discover", {}
    yield "list_tasks", {"tags": [text]}
    yield "get_task", {"task": text}
    yield "create_session", {"toolpacks": [*TOOLPACKS], "labels": {text: text}}
    yield "create_session", {"toolpacks": [*TOOLPACKS], "environment": {"bank": {text: text}}}
    yield "create_session", {"toolpacks": ["bank"], "perturbations": {"rules": [{"error": text}] * 50}}
    yield "list_functions", {**of, "format": "mcp"}
    yield "run_function", {**of, "function": "search_files", "kwargs": {"query": "x"}}
    yield "get_session", of
    yield "get_environment", of
    yield "get_environment", {**of, "pointer": "/workspace" + "/" * size}
    yield "diff_environment", {**of, "from_version": 0}
    yield "diff_environment", {**of, "to_session_id": other}
    yield "summarize_changes", {**of, "from_version": 0}
    yield "get_trace", {**of, "limit": 1000}
    yield "get_environment", {**of, "format": "snapshot"}
    yield "fork_session", {**of, "count": 20}
    yield "add_message", {**of, "role": "user", "content": text}
    yield "submit_answer", {**about, "answer": text}
    played = {"session_id": bench.rpc("create_session", toolpacks=["bank"], participants={"user": {}})["session_id"]}
    yield "add_turn", {**played, "participant": "user", "metadata": {"text": text}}
    yield "fail_participant", {**played, "participant": "user", "reason": "nonsense", "message": text}
    yield "create_session", {"toolpacks": ["errands"], "events": [{"at": 60, "notice": text}]}
    rules = [{"every": 1, "notice": "x" * 200}] * 40
    moving = {"session_id": bench.rpc("create_session", toolpacks=["errands"], events=rules)["session_id"]}
    yield "run_function", {**moving, "function": "wait", "kwargs": {"until_something_happens": False}}
    yield "get_events", moving
    yield "get_solution", about
    yield "review_session", about
    yield "evaluate_session", about
    yield "summarize_sessions", {"labels": {"of": text}}
    yield "summarize_sessions", {"labels": {"of": text}, "evaluate": True}
    yield "list_sessions", {"labels": {"of": text}}
    yield "replay_session", of
    yield "export_bundle", of
    yield "import_bundle", {"bundle": bench.rpc("export_bundle", **of)["bundle"], "mode": "replay"}
    yield "import_bundle", {"bundle": text}
    yield "reset_session", {**of, "version": 0}
    yield "close_session", {"session_id": other}
    yield "close_session", {"labels": {"of": text}}
