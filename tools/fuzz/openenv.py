"""Fuzz test of OpenEnv's paths: hostile requests, messages and frames.

For any input, a request must get an expected status, and never 500. A message must get an answer, or the server closes
the WebSocket with a reason. The server must log only calls and refusals, and must go on serving.
"""

import struct
from collections import Counter

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from raw_websocket import BINARY, CLOSE, PING, PONG, TEXT, RawWebSocket, frame

from tools.fuzz.conversations import ConversationRunner
from tools.fuzz.oracle import check_text, parse_strict, require
from tools.fuzz.values import damaged_json, kwargs, mostly, texts, values

STATUSES = {200, 400, 404, 413, 415, 422, 426}
CODES = {"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "SESSION_ERROR"}
RPC_CODES = {-32700, -32600, -32601, -32602, -32000}
CLOSES = {1000, 1001, 1002, 1003, 1005, 1007, 1008, 1009, 3000}
SOCKETS = ["/openenv/bank/ws", "/ws", "/openenv/bank/ws?session_id=fuzz", "/openenv/bank/mcp?session_id=fuzz"]
PATHS = ["/reset", "/step", "/mcp", "/bank/tasks", "/bank/num_tasks", "/bank/task", "/bank/task_range", "/nope/task"]

ids = mostly(st.sampled_from(["fuzz", "a", "b", None]), texts | values, 6)
tasks = mostly(st.sampled_from(["bank/save-300", "bank/savings-balance"]), texts | values, 6)
tools = mostly(st.sampled_from(["get_balance", "move_to_savings", "submit_answer"]), texts | values, 6)
arguments = mostly(st.just({}) | st.just({"amount": "1.00"}) | st.just({"answer": "x"}), kwargs | values, 2)


def _object(required, **optional):
    return mostly(st.fixed_dictionaries(required, optional=optional), values, 15)


resets = _object(
    {"task": tasks},
    episode_id=ids,
    seed=values,
    split=ids,
    index=values,
    rewards=ids,
    perturbations=values,
    more=values,
)
actions = _object({"type": st.just("list_tools")}) | _object(
    {"type": mostly(st.just("call_tool"), texts), "tool_name": tools},
    arguments=arguments,
    metadata=_object({}, call_id=ids, more=values),
)
actions |= _object({"type": st.just("submit_answer")}, answer=mostly(texts, values), metadata=_object({}, call_id=ids))
calls = _object(
    {
        "jsonrpc": st.just("2.0"),
        "id": ids,
        "method": mostly(
            st.sampled_from(["tools/list", "tools/call", "openenv/session/create", "openenv/session/close"]), texts
        ),
    },
    params=_object({}, name=tools, arguments=arguments, session_id=ids),
)
messages = (
    _object({"type": st.just("reset")}, data=resets)
    | _object({"type": st.just("step"), "data": actions})
    | _object({"type": st.just("mcp"), "data": calls})
    | _object({"type": st.just("state")}, data=values)
    | calls
)
bodies = (
    resets
    | _object({"action": actions, "episode_id": ids}, timeout_s=values, request_id=ids)
    | calls
    | _object({}, split=ids, index=values, start=values, stop=values)
)
requests = st.tuples(st.sampled_from(PATHS), damaged_json(bodies))


@st.composite
def frames(draw):
    """Draw a message as one frame or several, sometimes with other frames between them, rarely with a fault."""
    text = draw(damaged_json(messages))
    wrong = draw(st.sampled_from([None] * 40 + ["opcode", "binary", "unmasked", "bits", "orphan", "large", "half"]))
    if wrong is not None:
        return {
            "opcode": frame(text, draw(st.sampled_from([3, 5, 11, 15]))),
            "binary": frame(text, BINARY),
            "unmasked": frame(text, masked=False),
            "bits": frame(text, bits=draw(st.sampled_from([0x10, 0x20, 0x40, 0x70]))),
            "orphan": frame(text, 0),
            "large": frame(b" " * 100_001),
            "half": frame(text)[: draw(st.integers(1, 6 + len(text)))],
        }[wrong]
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=draw(st.sampled_from([0, 0, 0, 3])))))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    between = draw(st.sampled_from([b""] * 4 + [frame(b"x", PING), frame(b"", PONG), frame(b"", 0, last=False)]))
    if len(parts) == 1:
        return frame(text)
    framed = [frame(part, TEXT if not at else 0, last=at == len(parts) - 1) for at, part in enumerate(parts)]
    return between.join(framed)


endings = st.sampled_from(
    [
        b"",
        frame(struct.pack("!H", 1000), CLOSE),
        frame(b"", CLOSE),
        frame(b"\x00", CLOSE),
        frame(b"\x03\xe8\xff", CLOSE),
    ]
)
talks = st.tuples(st.sampled_from(SOCKETS), st.lists(frames(), min_size=1, max_size=6), endings)


# The last message of a conversation, by whether the path speaks MCP. Its answer repeats `@last`.
LAST = {True: b'{"jsonrpc":"2.0","id":1,"method":"@last"}', False: b'{"type":"@last"}'}


def _hold_talk(port, path, sent, ending):
    """Send frames and a last message, and close after the answer to it. Check all answers, and count their kinds."""
    answer_counts = Counter()
    with RawWebSocket(port, path) as websocket:
        require(websocket.status == 101, "no handshake", websocket.status, websocket.body)
        try:
            websocket.write(b"".join(sent) + frame(LAST["/mcp" in path]))
        except OSError:
            answer_counts["cut off"] += 1
        while True:
            try:
                answer = websocket.read()
            except ConnectionError:
                answer = None
            if answer is None:
                return answer_counts
            opcode, payload = answer
            if opcode == CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if payload else 1005
                require(code in CLOSES, "closed with an unexpected code", code, payload, sent)
                check_text(payload)
                answer_counts[code] += 1
            elif opcode == TEXT:
                answer_counts[_check_message(payload)] += 1
                if b"@last" in payload:
                    websocket.write(ending or frame(struct.pack("!H", 1000), CLOSE))
            else:
                require(opcode in {PING, PONG}, "an unexpected frame", opcode)


def _check_message(payload):
    check_text(payload)
    message = parse_strict(payload)
    if "jsonrpc" in message:
        return _check_rpc(message)
    require(message.keys() == {"type", "data"}, "a message has an unexpected form", message)
    kind, data = message["type"], message["data"]
    if kind == "error":
        require(data.keys() == {"message", "code"} and data["message"], "an error has an unexpected form", data)
        require(data["code"] in CODES, "an unexpected code", data)
    elif kind == "mcp":
        _check_rpc(data)
    else:
        require(kind in {"observation", "state"}, "an unexpected type", message)
    return kind


def _check_rpc(answer):
    require(
        answer.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"}),
        "an answer has an unexpected form",
        answer,
    )
    error = answer.get("error")
    require(error is None or (error["code"] in RPC_CODES and error["message"]), "an unexpected error", answer)
    return "rpc error" if error else "rpc result"


def _send_request(http, path, body):
    reply = http.post("/openenv/bank" + path, content=body, headers={"content-type": "application/json"})
    require(reply.status_code in STATUSES, "an unexpected status", reply.status_code, path, body, reply.text)
    check_text(reply.content)
    answer = parse_strict(reply.content)
    if path == "/mcp" and reply.status_code == 200:
        _check_rpc(answer)
    elif reply.status_code != 200:
        require(set(answer) <= {"detail", "jsonrpc", "id", "error"}, "a refusal has an unexpected form", answer)
    return reply.status_code


def fuzz_openenv(server, log, examples, number=None):
    """Send `examples` requests and hold as many conversations. Return the number of answers by status or kind."""
    runner = ConversationRunner(server, log)
    examples_settings = settings(
        max_examples=examples, deadline=None, database=None, derandomize=number is None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink], print_blob=False,
    )  # fmt: skip

    @examples_settings
    @given(requests)
    def ask(request):
        runner.answer_counts[_send_request(server.http, *request)] += 1

    @examples_settings
    @given(talks)
    def talk(conversation):
        runner.answer_counts.update(_hold_talk(runner.port, *conversation))

    for each in (ask, talk):
        (each if number is None else seed(number)(each))()
        require(server.http.get("/healthz").text == "ok", "the server is not healthy")
        runner.check_log()
    return runner.answer_counts
