"""Fuzz test of HTTP: malformed messages are sent to a real server on many raw sockets, until it closes each socket.

For any input, the server must answer with expected statuses and complete, valid bodies. It must close every connection
in time, and log only calls, sessions and refusals.
"""

import asyncio
import contextlib
import json
import re
from collections import Counter

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tools.fuzz.oracle import check_text, parse_strict, require

STATUSES = {100, 200, 202, 204, 303, 400, 401, 403, 404, 405, 408, 413, 415, 431, 503}
# Limits of the tested server. In addition, uvicorn closes a connection that is idle for 5 s.
RECEIVE_SECONDS = 1.0
LIMITS = {
    "TOOLPACK_MAX_BODY_BYTES": "100000",
    "TOOLPACK_LOG_CALLS": "json",
}
END_SECONDS = 15.0  # time within which the server must close a connection
PAUSE_SECONDS = 0.05
MCP_CODES = {-32700, -32600, -32601, -32602, -32020, -32022}  # codes of MCP's errors with a status other than 200
PARALLEL_CONVERSATIONS = 40
MAX_PRINTED = 600


class Conversation:
    """The actions of a client on one connection.

    Args:
        pieces: The bytes to send, with a pause after each piece.
        ending: The client's last action: `wait`, `half` (close only the client's side), `close`, or `reset`.
    """

    def __init__(self, pieces, ending):
        self.pieces, self.ending = pieces, ending

    def __repr__(self):
        text = " | ".join(
            repr(piece if len(piece) < MAX_PRINTED else piece[: MAX_PRINTED // 2] + b"..." + piece[-MAX_PRINTED // 2 :])
            for piece in self.pieces
        )
        return f"Conversation({text}, {self.ending})"


def _call(session, method="run_function"):
    params = {"session_id": session}
    if method == "run_function":
        params |= {"function": "add", "kwargs": {"amount": 1}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
EXTENSIONS = {"io.modelcontextprotocol/tasks": {}}
ACCEPTS = MODERN | {"io.modelcontextprotocol/clientCapabilities": {"extensions": EXTENSIONS}}
ADD = {"name": "add", "arguments": {"amount": 1}}


def _mcp_body(method, **params):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


_MCP_BODIES = [
    _mcp_body("initialize", protocolVersion="2025-06-18"), _mcp_body("tools/list"), _mcp_body("tools/call", **ADD),
    _mcp_body("tools/call", **ADD, _meta=MODERN), _mcp_body("tools/call", **ADD, _meta={"progressToken": "x" * 1500}),
    _mcp_body("tools/call", name="add", arguments={"amount": {"$call": {"function": "total", "args": {}}}}),
    _mcp_body("tools/list", _meta=MODERN | {"io.modelcontextprotocol/protocolVersion": "1" * 1500}),
    _mcp_body("x" * 1500), _mcp_body("tools/call", name="\u0000" * 100), b'{"jsonrpc": "2.0", "method": "x"}',
    _mcp_body("tools/call", **ADD, _meta=ACCEPTS), _mcp_body("tasks/get", taskId="x." * 700, _meta=ACCEPTS),
    _mcp_body("tasks/cancel", taskId={"x": []}, _meta=ACCEPTS), _mcp_body("tasks/update", _meta=MODERN),
    b"[]", b"{", b"5", b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
]  # fmt: skip
_MCP_HEADERS = [
        b"MCP-Protocol-Version: 2026-07-28", b"MCP-Protocol-Version: 2025-06-18", b"MCP-Protocol-Version: \xff",
        b"MCP-Protocol-Version: " + b"1" * 2000, b"Mcp-Method: tools/call", b"Mcp-Method: tasks/get",
        b"Mcp-Method: tasks/cancel", b"Mcp-Method: =?base64?\xff?=",
        b"Mcp-Name: add", b"Mcp-Name: =?base64?YWRk?=", b"Mcp-Name: =?base64?" + b"A" * 3000 + b"?=",
        b"Mcp-Param-X: " + b"y" * 3000, b"Mcp-Session-Id: x", b"Last-Event-ID: 5", b"Accept: text/event-stream",
        b"Accept: " + b"text/event-stream," * 100, b"Origin: http://localhost:1", b"Origin: http://[::1",
]  # fmt: skip
# The examples are drawn by number, because Hypothesis would print all bodies if they were drawn themselves.
_mcp_bodies = st.sampled_from(range(len(_MCP_BODIES))).map(_MCP_BODIES.__getitem__)
_mcp_headers = st.lists(st.sampled_from(range(len(_MCP_HEADERS))).map(_MCP_HEADERS.__getitem__), max_size=4)


def _rarely(*odd_values, times=6):
    """Draw one of the odd values, or None, which is `times` times as likely as each of them."""
    return st.sampled_from([None] * times + list(odd_values))


_lines = st.sampled_from([b"POST /rpc HTTP/1.1"] * 80 + [
    b"POST /rpc HTTP/1.0", b"GET /healthz HTTP/1.1", b"GET /readyz HTTP/1.0", b"GET /metrics HTTP/1.1",
    b"GET /openrpc.json HTTP/1.1", b"GET / HTTP/1.1", b"POST /agents/" + b"0" * 32 + b" HTTP/1.1",
    b"POST /agents/%00%ff%2e%2e HTTP/1.1", b"POST //rpc HTTP/1.1", b"POST http://evil.example/rpc HTTP/1.1",
    b"POST /rpc?x=1#y HTTP/1.1", b"OPTIONS * HTTP/1.1", b"CONNECT evil.example:443 HTTP/1.1", b"PUT /rpc HTTP/1.1",
    b"BREW /rpc HTTP/1.1", b"post /rpc HTTP/1.1", b"POST /rpc HTTP/2.0", b"POST /rpc HTTP/9.9", b"POST /rpc", b"POST",
    b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00\x01\x00", b"POST  /rpc  HTTP/1.1", b"POST /\xff\xfe HTTP/1.1",
    b"POST /" + b"a" * 9000 + b" HTTP/1.1", b"POST /" + b"a" * 70_000 + b" HTTP/1.1", b"", b"\r\n\r\n", b"\x00" * 50,
])  # fmt: skip
_hosts = st.sampled_from([[b"Host: 127.0.0.1"]] * 50 + [
    [], [b"Host:"], [b"Host: evil.example"], [b"Host: 127.0.0.1", b"Host: evil.example"],
    [b"Host: evil.example", b"Host: 127.0.0.1"], [b"Host: user@127.0.0.1"], [b"Host: [::1"], [b"Host: LOCALHOST:80"],
])  # fmt: skip
_extras = st.lists(
    st.sampled_from([
        b"Connection: close", b"Connection: close", b"Connection: close", b"Connection: keep-alive",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAA\r\nSec-WebSocket-Version: 13",
        b"Connection: close, Upgrade\r\nUpgrade: \xff", b"Expect: 100-continue",
        b"Expect: 200-ok", b"Expect: 100-CONTINUE",
        b"X-Request-ID: ok-1", b"X-Request-ID: \x7f", b"X-Request-ID: " + b"x" * 200, b'X-Request-ID: a\tb{}"',
        b"Authorization: Bearer \xff\xfe", b"Authorization:", b"Authorization: Bearer a\r\nAuthorization: Bearer b",
        b"Origin: http://evil.example", b"Origin: null", b"Content-Encoding: gzip", b"Cookie: " + b"a" * 5000,
        b"X: " + b"y" * 70_000, b"\r\n".join(b"X-%d: 1" % n for n in range(500)), b"X: a\r\n b", b"X : 1", b": 1", b"X",
        b"X\x00: 1", b"X: \x00", b"X: a\rb", b"Content-Type: text/plain", b"Range: bytes=0-",
        b"Trailer: X", b"TE: trailers",
    ]),
    max_size=1,
)  # fmt: skip


def _chunked(body, form):
    """Return a body in two chunks, with the fault that `form` names."""
    half = len(body) // 2
    one, two = body[:half], body[half:]
    framed = b"%x\r\n%b\r\n%x\r\n%b\r\n" % (half, one, len(two), two)
    return {
        "right": framed + b"0\r\n\r\n",
        "extended": framed.replace(b"\r\n", b";a=b;c\r\n", 1) + b"0;x\r\n\r\n",
        "trailers": framed + b"0\r\nX: 1\r\nContent-Length: 5\r\nHost: evil.example\r\n\r\n",
        "endless trailers": framed + b"0\r\n" + b"X: 1\r\n" * 20_000,
        "bare newlines": framed.replace(b"\r\n", b"\n") + b"0\n\n",
        "a negative size": b"-5\r\n" + body + b"\r\n0\r\n\r\n",
        "a huge size": b"f" * 15 + b"\r\n" + body,
        "a size too long": b"f" * 40 + b"\r\n" + body,
        "no size": b"\r\n" + body + b"\r\n0\r\n\r\n",
        "hex with prefix": b"0x10\r\n" + body + b"\r\n0\r\n\r\n",
        "a long extension": b"5;" + b"a" * 80_000 + b"\r\nabcde\r\n0\r\n\r\n",
        "no end": framed,
        "too much": b"%x\r\n%b\r\n" % (60_000, b" " * 60_000) * 2 + b"0\r\n\r\n",
    }[form]


_chunkings = st.sampled_from(["right"] * 4 + [
    "extended", "trailers", "endless trailers", "bare newlines", "a negative size", "a huge size", "a size too long",
    "no size", "hex with prefix", "a long extension", "no end", "too much",
])  # fmt: skip


@st.composite
def _framed(draw, body):
    """Draw the headers that frame a body (its length or coding), and return them with the framed body."""
    framing = draw(
        st.sampled_from(["length"] * 12 + ["odd length", "chunked", "chunked", "both", "none", "odd coding"])
    )
    right = b"Content-Length: %d" % len(body)
    if framing == "length":
        return [right], body
    if framing == "odd length":
        odd_values = [b"-1", b"+5", b"5, 5", b"0x10", b"1e3", b"", b"9" * 18, b"9" * 20, b"9" * 5000,
               b"%d " % (len(body) + 50),
               b"%d" % max(0, len(body) - 9), b"%d\r\nContent-Length: 3" % len(body), b"100001", b"\xb2"]  # fmt: skip
        return [b"Content-Length: " + draw(st.sampled_from(odd_values))], body
    if framing == "none":
        return [], body
    chunks = _chunked(body, draw(_chunkings))
    if framing == "chunked":
        return [b"Transfer-Encoding: chunked"], chunks
    if framing == "both":
        return draw(st.permutations([right, b"Transfer-Encoding: chunked"])), draw(st.sampled_from([body, chunks]))
    odd_values = [b"gzip, chunked", b"chunked, chunked", b"chunked, gzip", b"identity", b"xchunked", b"chunked\x0b",
           b" chunked ",            b"CHUNKED", b"", b"chunked\r\nTransfer-Encoding: identity"]  # fmt: skip
    return [b"Transfer-Encoding: " + draw(st.sampled_from(odd_values))], chunks


@st.composite
def _messages(draw, session, mcp_path):
    """Draw one HTTP request: a valid request with some odd parts, sometimes with a damaged head."""
    line, more = draw(_lines), []
    is_mcp = draw(st.sampled_from([False] * 3 + [True]))
    if is_mcp:
        method = draw(st.sampled_from([b"POST"] * 8 + [b"GET", b"DELETE", b"OPTIONS"]))
        path = draw(st.sampled_from([mcp_path] * 6 + [b"/mcp/" + b"0" * 48, b"/mcp/", b"/mcp/%00", mcp_path + b"/x"]))
        line, more = b"%b %b HTTP/1.1" % (method, path), draw(_mcp_headers)
    body = draw(_mcp_bodies) if is_mcp else draw(st.sampled_from([_call(session)] * 3 + [
        _call(session, "get_session"), b"", b"{", b"[]", b"\xff\xfe", b" " * 99_000, b"[" * 2000, _call(session) * 2,
    ]))  # fmt: skip
    lengths, framed = draw(_framed(body))
    media = draw(
        st.sampled_from([b"Content-Type: application/json"] * 18 + [b"content-type:application/json;x", b"X: 1"])
    )
    headers = draw(st.permutations([*draw(_hosts), media, *lengths, *draw(_extras), *more]))
    newline = draw(st.sampled_from([b"\r\n"] * 25 + [b"\n"]))
    head = newline.join([line, *headers, b"", b""])
    damage = draw(_rarely(b"\x00", b"\r", b"\n", b"\xff", times=60))
    if damage is not None:
        at = draw(st.integers(0, len(head)))
        head = head[:at] + damage + head[at:]
    return head + framed


@st.composite
def conversations(draw, session, mcp_path):
    """Draw a conversation: one to three pipelined requests, cut into pieces, and an ending."""
    text = b"".join(draw(st.lists(_messages(session, mcp_path), min_size=1, max_size=3)))
    if draw(st.sampled_from([False] * 5 + [True])):
        text = text[: draw(st.integers(0, len(text)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    pieces = tuple(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))
    return Conversation(pieces, draw(st.sampled_from(["wait"] * 4 + ["half", "half", "close", "reset"])))


async def hold(port, conversation):
    """Hold a conversation, and return all bytes from the server. Fail if it doesn't close the connection in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = bytearray()
    try:
        async with asyncio.timeout(END_SECONDS):
            await asyncio.gather(_receive(reader, received), _send(writer, conversation))
    except TimeoutError:
        require(False, f"a connection did not end within {END_SECONDS:g} s", conversation, bytes(received))
    writer.transport.abort()
    return bytes(received)


async def _send(writer, conversation):
    with contextlib.suppress(OSError):
        for piece in conversation.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(PAUSE_SECONDS)  # act as a slow client
        if conversation.ending == "half" and writer.can_write_eof():
            writer.write_eof()
        elif conversation.ending == "close":
            writer.close()
        elif conversation.ending == "reset":
            writer.transport.abort()


async def _receive(reader, received):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            received += data


def check_replies(received, conversation):
    """Check all responses that a server sent on a connection, and return their statuses."""
    check_text(received)
    statuses, rest = [], received
    while rest:
        head, end, rest = rest.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) [A-Za-z -]*\r?\n?", head + end)
        require(status, "not an HTTP response", head[:200], conversation, received)
        statuses.append(int(status[1]))
        require(statuses[-1] in STATUSES, "a response has an unexpected status", head, conversation)
        length = re.search(rb"(?im)^content-length: (\d+)\r?$", head)
        body, rest = rest[: int(length[1]) if length else 0], rest[int(length[1]) if length else 0 :]
        closed = conversation.ending in {"close", "reset"}
        require(closed or not length or len(body) == int(length[1]), "a response was cut off", received, conversation)
        if b"application/json" in head and len(body) == int(length[1]):
            answer = parse_strict(body)
            require(isinstance(answer, dict | list), "a body is not JSON-RPC", body)
            if statuses[-1] in {400, 404} and answer["error"]["code"] in MCP_CODES:
                require(answer["error"]["message"], "an error has no message", body)
            elif statuses[-1] != 200:
                require(answer["error"]["data"] == {"status": statuses[-1]}, "a refusal has another shape", body)
    return statuses


async def hold_all(port, conversations):
    """Hold conversations at the same time."""
    return await asyncio.gather(*(hold(port, conversation) for conversation in conversations))


class ConversationRunner:
    """Holds conversations with one running server, and counts its answers.

    Attributes:
        answer_counts: The number of answers by status.
    """

    def __init__(self, server, log):
        self.server = server
        self.port = int(server.url.rpartition(":")[2])
        session = server.rpc("create_session", toolpacks=["ledger"])
        self.session, self.mcp_path = session["session_id"], session["mcp_path"].encode()
        self.answer_counts = Counter()
        self._log_file, self._log_offset = log, 0

    def hold(self, batch):
        """Hold conversations, and check the answers and the log. Then check that the server still works."""
        for received, conversation in zip(asyncio.run(hold_all(self.port, batch)), batch, strict=True):
            statuses = check_replies(received, conversation)
            self.answer_counts.update(statuses or ["no answer"])
        require(self.server.http.get("/healthz").text == "ok", "the server is not healthy")
        version = self.server.rpc("get_session", session_id=self.session)["version"]
        trace = self.server.rpc("get_trace", session_id=self.session, after=version - 2)
        require(not trace or trace[-1]["version"] == version, "version and trace differ", version, trace[-1:])
        self.check_log()

    def check_log(self):
        """Check that the log has only lines of calls, sessions and refused requests."""
        text = self._log_file.read_bytes()[self._log_offset :]
        self._log_offset += len(text)
        check_text(text)
        for line in text.splitlines():
            call = parse_strict(line)
            require(
                isinstance(call, dict) and ("request_id" in call or call.get("event") == "refused"),
                "the log has an unexpected line",
                line,
            )


def fuzz_conversations(server, log, rounds, number=None):
    """Hold rounds of conversations with a server, and return the number of answers by status.

    Args:
        server: The running server.
        log: The file to which the server logs.
        rounds: Number of rounds. A round has 40 conversations at once.
        number: Seed of the conversations. None means that all runs hold the same conversations.
    """
    runner = ConversationRunner(server, log)
    any_conversation = conversations(runner.session, runner.mcp_path)

    @settings(
        max_examples=rounds + 1, deadline=None, database=None, derandomize=number is None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate], print_blob=False,
    )  # fmt: skip
    @given(st.lists(any_conversation, min_size=PARALLEL_CONVERSATIONS, max_size=PARALLEL_CONVERSATIONS))
    def send(batch):
        if len({conversation.pieces for conversation in batch}) > 1:  # Hypothesis' first example repeats one element
            runner.hold(batch)

    (send if number is None else seed(number)(send))()
    return runner.answer_counts
