"""MCP over standard input and output: with a session in memory, or one on a server."""

import asyncio
import contextlib
import http.server
import itertools
import json
import os
import signal
import subprocess
import threading

import http_endpoint
import mcp_endpoint
import pytest
import server_process
import warm
from mcp_endpoint import META, MODERN
from mcp_handles import ACCEPTS
from serving import PATIENCE, wait_until

from toolpack_server.features.protocols.mcp.messages import read_message
from toolpack_server.features.protocols.mcp.stdio import bridge
from toolpack_server.features.protocols.mcp.stdio.lines import MAX_OFFERED, LineWriter
from toolpack_server.packs.loading import load_catalog

LEGACY = "2025-06-18"
PACK = '''
"""Functions that disturb."""

import os
import subprocess
import sys
import time
from pathlib import Path

from toolpack_server import EmptyEnv, Toolpack

print("printed on import")
toolpack = Toolpack("noisy", EmptyEnv)


@toolpack.function
def shout(text: str) -> str:
    """Print in every way.

    :param text: What.
    """
    print(text, flush=True)
    sys.stdout.write(text + "\\n")
    os.write(1, text.encode())
    subprocess.run(["echo", text], check=True)
    return repr(sys.stdin.read()) + repr(subprocess.run(["cat"], check=True, capture_output=True).stdout)


@toolpack.function(timeout_seconds=60)
def wait_for(path: str, text: str = "done") -> str:
    """Wait until a file is there.

    :param path: The file.
    :param text: What to say then.
    """
    Path(path + ".started").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return text


@toolpack.function(timeout_seconds=60)
def read(path: str) -> str:
    """Read a pipe, where nothing can interrupt it.

    :param path: The pipe.
    """
    Path(path + ".started").touch()
    return Path(path).read_text()
'''


class Client:
    """A client that launched the command."""

    def __init__(self, process):
        self.process = process
        self.number = 0

    def write(self, text):
        self.process.stdin.write(text if isinstance(text, bytes) else text.encode())
        self.process.stdin.flush()

    def send(self, method, /, era=LEGACY, *, notify=False, **params):
        if era == MODERN:
            params["_meta"] = META | params.get("_meta", {})
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if not notify:
            self.number += 1
            message["id"] = self.number
        self.write(json.dumps(message) + "\n")
        return self.number

    def read(self):
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), self.process.stderr.read()
        return json.loads(line)

    def ask(self, method, /, era=LEGACY, **params):
        number = self.send(method, era, **params)
        reply = self.read()
        assert reply["id"] == number, reply
        return reply

    def call(self, name, era=LEGACY, /, **arguments):
        return self.ask("tools/call", era, name=name, arguments=arguments)["result"]

    def end(self):
        """End the input. Return the exit status, and the remaining output and log."""
        remaining_output, printed = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, remaining_output, printed


@contextlib.contextmanager
def launch(*arguments, **variables):
    process = warm.Warm(
        server_process.command("mcp", *arguments),
        env=server_process.environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield Client(process)
    finally:
        process.kill()
        process.wait(PATIENCE)
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                stream.close()


@pytest.fixture
def packs(tmp_path):
    (tmp_path / "noisy.py").write_text(PACK)
    return ["--pack-dir", str(tmp_path)]


def test_client_of_each_era_lists_and_calls_tools():
    with launch("--packs", "bank") as client:
        assert client.ask("initialize", protocolVersion="2025-03-26")["result"]["protocolVersion"] == "2025-03-26"
        client.send("notifications/initialized", notify=True)
        assert client.ask("ping")["result"] == {}
        tools = client.ask("tools/list")["result"]["tools"]
        assert client.ask("tools/list", MODERN)["result"]["tools"] == tools
        assert client.ask("server/discover", MODERN)["result"]["supportedVersions"][0] == MODERN
        assert client.call("get_balance")["content"] == [{"type": "text", "text": "1840.25"}]
        moved = client.call("move_to_savings", MODERN, amount="40.25")
        assert moved["structuredContent"]["amount"] == "-40.25"
        assert client.call("get_balance")["content"][0]["text"] == "1800.00"
        assert client.ask("tools/call", name="nothing")["error"]["code"] == -32602
        assert client.ask("resources/list", MODERN)["error"]["code"] == -32601
        status, remaining_output, _ = client.end()
    assert (status, remaining_output) == (0, b"")


def test_session_has_all_toolpacks_but_opt_in_or_the_named_ones(packs):
    with launch() as client:
        names = {tool["name"] for tool in client.ask("tools/list")["result"]["tools"]}
    assert {"get_balance", "list_emails"} & names
    with launch("--packs", "office") as client:
        assert "get_overview" in {tool["name"] for tool in client.ask("tools/list")["result"]["tools"]}
    with launch(*packs) as client:
        assert {tool["name"] for tool in client.ask("tools/list")["result"]["tools"]} == {"shout", "wait_for", "read"}


def test_client_plays_a_task_in_its_own_session():
    with launch("--task", "bank/save-300") as client:
        greeting = client.ask("initialize", protocolVersion=LEGACY)["result"]
        assert greeting["instructions"] == "Please put 300 euros aside on my savings account."
        assert client.ask("tools/list")["result"]["tools"][-1]["name"] == "submit_answer"


@pytest.mark.heavy
def test_seed_option_creates_a_seeded_session():
    with launch("--packs", "bank", "--seed", "5") as client:
        assert client.call("get_balance")["content"][0]["text"] == "1840.25"


def test_output_of_functions_never_reaches_the_client(packs):
    with launch(*packs) as client:
        assert client.call("shout", text="a stray line")["content"][0]["text"] == "''b''"
        status, remaining_output, printed = client.end()
    assert (status, remaining_output) == (0, b"")
    assert printed.count(b"a stray line") == 4
    assert b"printed on import" in printed
    assert b'"function":"shout"' in printed  # the log


def test_invalid_line_is_answered_without_an_id():
    with launch("--packs", "bank", TOOLPACK_MAX_BODY_BYTES="4096") as client:
        for line, code in [
            ("no JSON", -32700),
            ("", -32700),
            ("[]", -32600),
            ("{}", -32600),
            ('{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
            ("x" * 5000, -32600),
            (" " * 200_000, -32600),
        ]:
            client.write(line + "\n")
            reply = client.read()
            assert (reply["id"], reply["error"]["code"]) == (None, code), line[:50]
        assert client.ask("ping")["result"] == {}
        client.write('{"jsonrpc":"2.0","id":"last","method":"ping"}\r')  # no line break at the end
        _, remaining_output, _ = client.end()
    assert json.loads(remaining_output) == {"jsonrpc": "2.0", "id": "last", "result": {}}


def wait_for_start(path):
    wait_until(path.with_name(path.name + ".started").exists, "the function")


def test_requests_run_in_parallel_and_calls_in_order(packs, tmp_path):
    path = tmp_path / "go"
    with launch(*packs) as client:
        first = client.send("tools/call", name="wait_for", arguments={"path": str(path), "text": "first"})
        wait_for_start(path)
        second = client.send("tools/call", MODERN, name="wait_for", arguments={"path": str(path), "text": "second"})
        assert client.ask("tools/list")["result"]["tools"]  # the first call is still running
        path.touch()
        answers = [client.read(), client.read()]
    assert [answer["id"] for answer in answers] == [first, second]
    assert [answer["result"]["content"][0]["text"] for answer in answers] == ["first", "second"]


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_cancelled_request_is_not_answered(packs, tmp_path, era):
    path = tmp_path / "go"
    with launch(*packs) as client:
        running = client.send("tools/call", era, name="wait_for", arguments={"path": str(path)})
        wait_for_start(path)
        waiting = client.send("tools/call", era, name="wait_for", arguments={"path": str(path)})
        behind = client.send("tools/call", era, name="wait_for", arguments={"path": str(path), "text": "behind"})
        for request_id in (waiting, running, "unknown", None, [1]):
            client.send("notifications/cancelled", era, notify=True, requestId=request_id)
        assert client.ask("tools/list", era)["result"]["tools"]  # By this answer the cancellations were read.
        path.touch()
        answer = client.read()
        assert (answer["id"], answer["result"]["content"][0]["text"]) == (behind, "behind")
        assert client.end()[:2] == (0, b"")


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_session_continues_at_once_after_a_cancelled_request(packs, tmp_path, era):
    pipe, started = tmp_path / "pipe", tmp_path / "there"
    os.mkfifo(pipe)
    started.touch()
    with launch(*packs) as client:
        running = client.send("tools/call", era, name="read", arguments={"path": str(pipe)})
        wait_for_start(pipe)
        client.send("notifications/cancelled", era, notify=True, requestId=running)
        assert client.call("wait_for", era, path=str(started))["content"][0]["text"] == "done"
        pipe.write_text("")  # The first call can end only now.


def test_progress_token_gets_progress_notifications(packs, tmp_path):
    path = tmp_path / "go"
    with launch(*packs) as client:
        meta = {"progressToken": "t"}
        client.send("tools/call", name="wait_for", arguments={"path": str(path)}, _meta=meta)
        progress = client.read()
        path.touch()
        assert client.read()["result"]["content"][0]["text"] == "done"
    assert progress["method"] == "notifications/progress"
    assert progress["params"]["progressToken"] == "t"
    assert progress["params"]["progress"] == 2


def test_running_call_is_finished_after_the_end_of_input(packs, tmp_path):
    path = tmp_path / "go"
    with launch(*packs) as client:
        client.send("tools/call", name="wait_for", arguments={"path": str(path)})
        wait_for_start(path)
        client.process.stdin.close()
        path.touch()
        remaining_output = client.process.stdout.read()
        assert client.process.wait(PATIENCE) == 0
    assert json.loads(remaining_output)["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_endless_call_is_abandoned_at_the_end(packs, tmp_path, number):
    path = tmp_path / "go"
    with launch(*packs, TOOLPACK_DRAIN_SECONDS="0.1") as client:
        client.send("tools/call", name="wait_for", arguments={"path": str(path)})
        wait_for_start(path)
        if number is not None:
            client.process.send_signal(number)
        status, remaining_output, _ = client.end()
    assert status == 0
    assert json.loads(remaining_output)["error"]["code"] == -33006


def test_process_ends_when_its_client_is_gone(packs):
    with launch(*packs) as client:
        client.ask("ping")
        client.process.stdout.close()
        client.write('{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        client.process.stdin.close()
        assert client.process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--packs", "nothing"], b"nothing"),
        (["--url", "ftp://x/mcp/y"], b"--url must have the form http://host:port/mcp?session=NAME"),
        (["--url", "http://127.0.0.1:1/agents/x"], b"--url must have the form http://host:port/mcp?session=NAME"),
        (["--url", "http://127.0.0.1:1/mcp?packs=bank"], b"--url must have the form http://host:port/mcp?session=NAME"),
        (["--url", "http://127.0.0.1:1/mcp/x", "--packs", "bank"], b"omit --packs"),
        (["--url", "http://127.0.0.1:1/mcp/x", "--task", "bank/save-300"], b"omit --packs"),
        (["--url", "http://127.0.0.1:1/mcp/x", "--token", "a b"], b"must consist of visible ASCII characters"),
        (["--packs", "bank", "--task", "bank/nope"], b"There is no task 'bank/nope'"),
    ],
)
def test_failed_start_prints_the_reason_to_stderr(arguments, why):
    with launch(*arguments) as client:
        status, remaining_output, printed = client.end()
    assert status != 0
    assert remaining_output == b""
    assert why in printed
    assert b"Traceback" not in printed


def poll(client, task_id):
    while (task := client.ask("tasks/get", MODERN, taskId=task_id, _meta=ACCEPTS)["result"])["status"] == "working":
        assert task["taskId"] == task_id
    return task


def call_for_handle(client, name, **arguments):
    result = client.ask("tools/call", MODERN, name=name, arguments=arguments, _meta=ACCEPTS)["result"]
    assert result["resultType"] == "task"
    return result["taskId"]


def test_long_call_has_a_handle(packs, tmp_path):
    with launch(*packs) as client:
        path = tmp_path / "go on"
        task_id = call_for_handle(client, "wait_for", path=str(path))
        assert client.ask("tasks/get", MODERN, taskId=task_id, _meta=ACCEPTS)["result"]["status"] == "working"
        path.touch()
        assert poll(client, task_id)["result"]["content"][0]["text"] == "done"
        other = call_for_handle(client, "wait_for", path=str(tmp_path / "never"))
        client.ask("tasks/cancel", MODERN, taskId=other, _meta=ACCEPTS)
        assert poll(client, other)["status"] == "cancelled"
        assert client.ask("tasks/get", MODERN, taskId=other)["error"]["code"] == -32021


# Forwarding to a server


@pytest.fixture(scope="module")
def server():
    with mcp_endpoint.served() as served:
        yield served


def url(mcp):
    return f"http://127.0.0.1:{mcp.endpoint.port}{mcp.path}"


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_messages_are_forwarded_to_a_session_on_a_server(mcp, era):
    for number in (1, 2):  # The world outlives the client.
        with launch("--url", url(mcp)) as client:
            if era == LEGACY:
                assert client.ask("initialize", protocolVersion=LEGACY)["result"]["protocolVersion"] == LEGACY
                client.send("notifications/initialized", notify=True)
            assert len(client.ask("tools/list", era)["result"]["tools"]) > 5
            counts = client.call("count", era, number=number)
            assert counts["structuredContent"] == {"counts": [1, 2][:number]}
            assert client.ask("tools/call", era, name="nothing", arguments={})["error"]["code"] == -32602
            assert client.ask("nonsense", era)["error"]["code"] == -32601
            client.write("no JSON\n")
            assert client.read()["error"]["code"] == -32700
            assert client.end()[:2] == (0, b"")
    assert mcp.counts() == [1, 2]


def test_handles_are_forwarded(mcp):
    with launch("--url", url(mcp)) as client:
        task_id = call_for_handle(client, "slow_compute", seconds=0.8)
        assert poll(client, task_id)["result"]["content"][0]["text"] == "computed  in 0.8 s"
    assert mcp.counts() == [1]


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_messages_are_forwarded_to_a_named_session(era):
    tokens = {"ann": "the-token-of-ann"}
    with http_endpoint.served("h11", catalog=load_catalog((), ("bank",)), log_calls="off", tokens=tokens) as endpoint:
        address = f"http://127.0.0.1:{endpoint.port}/mcp?packs=bank&session=mine"
        with launch("--url", address, TOOLPACK_TOKEN=tokens["ann"]) as client:
            client.ask("server/discover" if era == MODERN else "initialize", era)
            client.call("move_to_savings", era, amount="40.25")
        with launch("--url", address, "--token", tokens["ann"]) as client:
            assert client.call("get_balance", era)["content"][0]["text"] == "1800.00"
        with launch("--url", address) as client:
            error = client.ask("tools/list", era)["error"]
    assert "the server requires a valid token: give one with --token, or as TOOLPACK_TOKEN." in error["message"]


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_prompt_of_a_task_is_forwarded(era):
    with http_endpoint.served("h11", catalog=load_catalog((), ("bank",)), log_calls="off") as endpoint:
        session = endpoint.rpc("create_session", task="bank/save-300")
        prompt_text = endpoint.rpc("get_task", task="bank/save-300")["prompt"]
        with launch("--url", f"http://127.0.0.1:{endpoint.port}{session['mcp_path']}") as client:
            first = client.ask("server/discover" if era == MODERN else "initialize", era)["result"]
            assert first["instructions"] == prompt_text
            assert [prompt["name"] for prompt in client.ask("prompts/list", era)["result"]["prompts"]] == ["task"]
            (prompt_message,) = client.ask("prompts/get", era, name="task")["result"]["messages"]
            assert prompt_message["content"]["text"] == prompt_text


def test_call_during_an_outage_is_retried_and_runs_once(tmp_path):
    with server_process.served(tmp_path) as served:
        session = served.rpc("create_session", toolpacks=["ledger"])
        port = served.url.rpartition(":")[2]
        with launch("--url", served.url + session["mcp_path"]) as client:
            assert client.call("add", amount=1)["content"][0]["text"] == "1"
            served.kill()
            number = client.send("tools/call", name="add", arguments={"amount": 2})
            with server_process.served(tmp_path, "--port", port) as restarted:
                answer = client.read()
                assert (answer["id"], answer["result"]["content"][0]["text"]) == (number, "3")
                records = restarted.rpc("get_trace", session_id=session["session_id"])
    assert [record["kwargs"]["amount"] for record in records] == [1, 2]
    assert None not in {record.get("call_id") for record in records}


def test_closed_session_and_wrong_path_are_errors(mcp):
    with launch("--url", url(mcp)) as client:
        mcp.rpc("close_session")
        assert client.ask("initialize", protocolVersion=LEGACY)["error"]["code"] == -33001
    with launch("--url", f"http://127.0.0.1:{mcp.endpoint.port}/x/mcp/y") as client:
        error = client.ask("ping")["error"]
    assert error["code"] == -32603
    assert "There is nothing at this path" in error["message"]


def test_progress_and_cancellation_are_forwarded(mcp):
    conformance = __import__("sys").modules["toolpacks.conformance"]
    conformance.gates["carried"] = conformance.threading.Event()
    with launch("--url", url(mcp)) as client:
        meta = {"progressToken": 5}
        arguments = {"number": 1, "gate": "carried"}
        running = client.send("tools/call", MODERN, name="count_and_wait", arguments=arguments, _meta=meta)
        assert client.read()["params"]["progressToken"] == 5
        client.send("notifications/cancelled", MODERN, notify=True, requestId=running)
        sessions = mcp.endpoint.app.state.gateway.service.sessions
        wait_until(
            lambda: not sessions.queues.threads.stuck_threads() and sessions.queues.is_idle(), "the end of the call"
        )
        conformance.gates["carried"].set()
        assert client.call("count", MODERN, number=2)["structuredContent"] == {"counts": [2]}
        assert client.end()[:2] == (0, b"")


class Impostor:
    """A fake server with scripted answers. It stores the requests that it gets.

    Args:
        answers: One function per request, which gets the handler and the request, and writes the response. The last
            function answers all further requests.
    """

    def __init__(self, *answers):
        self.requests = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(request)
                answer = answers[min(len(outer.requests), len(answers)) - 1]
                with contextlib.suppress(OSError):
                    answer(self, request)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/mcp/key"
        threading.Thread(target=self.http.serve_forever, args=[0.01], daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def impostor():
    with contextlib.ExitStack() as stack:
        yield lambda *answers: stack.enter_context(contextlib.closing(Impostor(*answers)))


def reply_with(kind="application/json", **members):
    def answer(handler, request):
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], **members}).encode()
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.end_headers()
        handler.wfile.write(b"data: %b\n\n" % body if "stream" in kind else body)

    return answer


def forever(*pieces):
    """Return an answer that sends an endless event stream."""

    def answer(handler, _request):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for piece in itertools.chain(pieces, itertools.repeat(pieces[-1])):
            handler.wfile.write(piece)

    return answer


STREAM = "text/event-stream"
BUSY = {"code": -33006, "message": "Send it again.", "data": {"type": "OverloadedError", "retry_after_seconds": 0.001}}


def forward_call(url, monkeypatch, max_bytes=1000):
    """Forward one call to a server. Return its answer, and the other messages for the client."""
    monkeypatch.setattr(bridge, "DELAY_SECONDS", 0.001)
    emitted = []

    async def call():
        client_bridge = bridge.Bridge(url, None, emitted.append, max_bytes)
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "f", "arguments": {}}}
        try:
            return json.loads(await client_bridge.answer(read_message(message)))
        finally:
            client_bridge.close()

    return asyncio.run(call()), emitted


@pytest.mark.parametrize("kind", ["application/json", STREAM])
def test_temporary_rejection_is_retried_with_the_same_call_id(impostor, monkeypatch, kind):
    busy, success = reply_with(kind, error=BUSY), reply_with(kind, result={"content": []})
    server = impostor(busy, busy, success)
    assert forward_call(server.url, monkeypatch)[0] == {"jsonrpc": "2.0", "id": 7, "result": {"content": []}}
    call_ids = {str(request["params"]["_meta"]) for request in server.requests}
    assert (len(server.requests), len(call_ids)) == (3, 1)


def test_calls_are_sent_one_after_the_other(monkeypatch):
    under_way = []

    async def alone(_bridge, message):
        under_way.append(message.id)
        await asyncio.sleep(0)
        assert under_way == [message.id]
        under_way.remove(message.id)
        return message.id

    async def calls():
        client_bridge = bridge.Bridge("http://127.0.0.1:1/mcp/key", None, print, 1000)
        message = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "f"}}
        return await asyncio.gather(
            *(client_bridge.answer(read_message({**message, "id": number})) for number in range(9))
        )

    monkeypatch.setattr(bridge.Bridge, "_send", alone)
    assert asyncio.run(calls()) == [*range(9)]


def test_repeated_rejection_is_returned_after_the_last_retry(impostor, monkeypatch):
    server = impostor(reply_with(error=BUSY))
    assert forward_call(server.url, monkeypatch)[0] == {"jsonrpc": "2.0", "id": 7, "error": BUSY}
    assert len(server.requests) == bridge.RETRIES + 1


@pytest.mark.parametrize("reply", ["7", 8, None, 7.0, True])
def test_answer_to_another_request_is_not_forwarded(impostor, monkeypatch, reply):
    answer, _ = forward_call(impostor(reply_with(id=reply, result={"secret": 1})).url, monkeypatch)
    assert (answer["id"], answer["error"]["code"]) == (7, -32603)
    assert "secret" not in str(answer)
    other = b'data: {"jsonrpc": "2.0", "id": %b, "result": 1}\n\n' % json.dumps(reply).encode()
    mine = b'data: {"jsonrpc": "2.0", "id": 7, "result": 2}\n\n'
    assert forward_call(impostor(forever(other, mine)).url, monkeypatch)[0]["result"] == 2


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (b": alive\n\n", "the server didn't answer within 0.05 s"),
        (b'data: {"jsonrpc": "2.0", "id": 8, "result": 1}\n\n', "the server didn't answer within 0.05 s"),
        (b"data: no JSON\n\n", "the server didn't answer within 0.05 s"),
        (b"data: [1]\n\n", "the server didn't answer within 0.05 s"),
        (b"data: more", "longer than 1000 bytes"),
        (b"data: more\n", "longer than 1000 bytes"),
    ],
)
def test_endless_event_stream_is_cut_off(impostor, monkeypatch, piece, why):
    monkeypatch.setattr(bridge, "STREAM_SECONDS", 0.05)
    answer, emitted = forward_call(impostor(forever(piece)).url, monkeypatch)
    assert (answer["id"], answer["error"]["code"]) == (7, -32603)
    assert why in answer["error"]["message"]
    assert emitted == []


def test_endless_event_stream_does_not_keep_the_process_alive(impostor):
    progress = b'data: {"jsonrpc": "2.0", "method": "notifications/progress"}\n\n'
    server = impostor(forever(progress, b": alive\n\n"))
    with launch("--url", server.url, TOOLPACK_DRAIN_SECONDS="0.1") as client:
        number = client.send("tools/call", name="f", arguments={})
        client.read()
        status, remaining_output, printed = client.end()
    assert (status, printed) == (0, b"")
    (last,) = map(json.loads, remaining_output.splitlines())
    assert last["id"] == number
    assert "The input ended" in last["error"]["message"]


def test_unread_output_is_dropped_beyond_a_limit():
    ours, theirs = os.pipe()
    writer = LineWriter(theirs)
    for _ in range(1000):
        writer.offer(b"x" * 1000)
    assert writer._lines.qsize() <= MAX_OFFERED
    os.close(ours)
    writer.close()
    os.close(theirs)


def test_process_ends_completely():
    with launch("--packs", "bank") as client:
        client.ask("ping")
        pid = client.process.pid
        assert client.end()[0] == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
