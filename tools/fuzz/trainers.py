"""Fuzz test of the trainers' protocols: hostile requests to the paths of ORS and NeMo Gym, and to MCP's `/mcp`.

For any input, the server must answer in the form of the protocol. An error must have a message, and never the status
500. No answer may reveal internals of Python.
"""

import json
import re
from collections import Counter

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from patience import PATIENCE

from tools.fuzz.oracle import require

STATUSES = {200, 202, 204, 400, 401, 403, 404, 405, 409, 413, 415, 422, 431, 503}
TASK = "bank/save-300"
COOKIE = "toolpack_session"

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("x" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
_tasks = st.sampled_from([TASK, TASK, TASK, "bank/nope", "", "bank", "nope/x", "\x00"]) | _json
_names = st.sampled_from(["get_balance", "move_to_savings", "submit_answer", "nope", "", "__class__"]) | _json
_arguments = st.sampled_from([{}, {"amount": "1.00"}, {"amount": -1}, {"answer": "x"}, {"answer": []}]) | _json
_splits = st.sampled_from(["all", "test", "train", ""]) | _json
_indices = st.sampled_from([0, -1, 5, 10**30]) | _json
_spec = st.fixed_dictionaries({"task": _tasks}, optional={"seed": _json, "perturbations": _json, "rewards": _json})


def _members(**members):
    return st.fixed_dictionaries({}, optional=members)


_BODIES = {
    "/create_session": _members(env=_json),
    "/create": _members(task_spec=_spec | _json, split=_splits, index=_indices, env_name=_tasks),
    "/call": _members(name=_names, input=_arguments, task_id=st.sampled_from(["again", "x" * 65]) | _json),
    "/bank/tasks": _members(split=_splits),
    "/bank/task": _members(split=_splits, index=_indices),
    "/bank/task_range": _members(split=_splits, start=_indices, stop=_indices),
    "/score_group": _json,
    "/ping": _json,
    "/delete": _json,
    "/seed_session": _spec | _members(resources_session_id=_names, task_data=_spec | _json),
    "/verify": _members(response=_members(output=st.lists(_json | _members(type=st.just("message"), content=_json)))),
    "/close_session": _members(resources_session_id=_names),
    "/aggregate_metrics": _members(verify_responses=st.lists(_members(reward=_json, _ng_task_index=_json)) | _json),
    "/get_balance": _arguments,
    "/move_to_savings": _arguments,
    "/mcp?packs=bank": _members(
        jsonrpc=st.just("2.0"), id=_json, method=st.sampled_from(["initialize", "tools/call", "x"]), params=_json
    ),
    "/mcp?task=bank/save-300&session=fuzz": _members(
        jsonrpc=st.just("2.0"), id=st.just(1), method=st.just("tools/call"), params=_members(name=_names)
    ),
    "/mcp?packs=%00&task=%ff&cheat=1": _json,
}
_GETS = ["/list_environments", "/bank/splits", "/tools", "/prompt", "/task_tools", "/messages", "/nope/tools"]
_GETS += [
    "/nemo_gym/bank.jsonl",
    "/nemo_gym/%00.jsonl",
    "/reverify_mode",
    "/openenv/bank/state",
    "/openenv/nope/schema",
]
_ids = st.sampled_from(["episode", "other", "x" * 70, "\x7f", "é"])
_headers = st.fixed_dictionaries(
    {},
    optional={
        "x-session-id": _ids,
        "mcp-session-id": _ids,
        "cookie": st.sampled_from([f"{COOKIE}=x", f"{COOKIE}=", "=;=", f"{COOKIE}", "\xff"]),
        "x-secrets": st.sampled_from(["", "e30=", "W10=", "!", "bnVsbA=="]),
        "x-api-key": st.sampled_from(["x", "\xff"]),
        "authorization": st.sampled_from(["Basic eDp5", "Basic !", "Bearer x", ""]),
        "x-deployment": st.sampled_from(["a/bank", "/", "\xff"]),
    },
)
_paths = st.sampled_from(list(_BODIES))
_requests = _paths.flatmap(lambda path: st.tuples(st.just(path), _BODIES[path], _headers))
_damages = st.sampled_from([lambda text: text] * 9 + [lambda text: text[:-1], lambda text: text + b"\xff"])


def fuzz_trainers(url, examples, number):
    """Send `examples` POST requests, and a fixed list of GET requests. Return the number of answers by status.

    Raises:
        AssertionError: An answer isn't allowed.
    """
    statuses = Counter()
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:

        def check(reply, what):
            statuses[reply.status_code] += 1
            require(reply.status_code in STATUSES, f"{what} was answered {reply.status_code}: {reply.text[:500]}")
            leak = re.search(r"Traceback|-32603|File \"|object at 0x", reply.text)
            require(leak is None, f"{what} was answered {reply.text[:500]}")
            if reply.status_code >= 400:
                answer = reply.json()
                message = answer.get("detail") or answer.get("error", {}).get("message") or answer.get("message")
                require(
                    isinstance(message, str) and message, f"{what} was answered without a sentence: {reply.text[:500]}"
                )

        @seed(number)
        @settings(
            max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )  # fmt: skip
        @given(_requests, _damages)
        def send(request, damage):
            path, value, headers = request
            body = damage(json.dumps(value).encode())
            all_headers = {"content-type": "application/json"}
            all_headers |= {name: text.replace("=x", f"={session}").encode("latin-1") for name, text in headers.items()}
            check(client.post(path, content=body, headers=all_headers), f"{path} {body[:500]!r} {headers}")

        for path in ("/create", "/create?again"):
            body = {"task_spec": {"task": TASK}}
            check(client.post(path, json=body, headers={"x-session-id": "episode"}), "the first episode")
        check(client.post("/seed_session", json={"task": TASK}), "an episode of NeMo Gym")
        session = client.cookies[COOKIE]
        client.cookies.clear()  # from here on, requests set the cookie explicitly
        send()
        for path in _GETS:
            for sid in ("", "episode", "nope"):
                check(client.get(path, headers={"x-session-id": sid, "cookie": f"{COOKIE}={sid}"}), path)
    return statuses
