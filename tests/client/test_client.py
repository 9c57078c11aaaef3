"""The sync and the async client: they have every method and typed results, and retry a request only if that is safe."""

import asyncio
import contextlib
import inspect
import json
import pydoc
import re
import ssl
import subprocess
import sys
import traceback
from types import SimpleNamespace

import httpx
import pytest
from http_server import running
from redis_server import free_port
from serving import AGENTS_METHODS, CLIENTS_METHODS

from toolpack_server.base.errors import NoReplyError, ReplyError
from toolpack_server.client import AgentClient, AsyncAgentClient, AsyncClient, Client, batches
from toolpack_server.client import clients as client_module
from toolpack_server.client.methods import AgentMethods, ClientMethods
from toolpack_server.client.requests import method
from toolpack_server.packs.loading import load_catalog

OK = {"jsonrpc": "2.0", "id": 1, "result": {"result": 1, "error": None}}
SESSION = {
    "session_id": "s",
    "toolpacks": [],
    "version": 0,
    "labels": {},
    "created_at": "",
    "expires_at": "",
    "agent_path": "/agents/key",
    "mcp_path": "/mcp/key",
    "toolpack_versions": {},
}
REPLAY = {"session": SESSION, "replayed": 1, "complete": True, "other_versions": {}}
OVERLOADED = {"code": -32006, "message": "Too much waits.", "data": {"retry_after_seconds": 2.5}}


@pytest.fixture(scope="module")
def url():
    with running(load_catalog((), ("bank",)), store="memory:") as served:
        yield served


@pytest.fixture
def pauses(monkeypatch):
    """Record the delays instead of sleeping."""
    delays = []

    async def pause(seconds):
        delays.append(seconds)

    # Patch only the client's module, because the server's threads must really sleep.
    monkeypatch.setattr(client_module, "time", SimpleNamespace(sleep=delays.append))
    monkeypatch.setattr(client_module, "asyncio", SimpleNamespace(sleep=pause, timeout=asyncio.timeout))
    return delays


class Script:
    """A transport that answers requests from a list, and records the requests and their timeouts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        self.seconds = []

    def __call__(self, request):
        self.requests.append(json.loads(request.content))
        self.seconds.append(request.extensions["timeout"]["read"])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        return httpx.Response(status, json=body) if not isinstance(body, str) else httpx.Response(status, text=body)


def ask_sync(script, ask, **settings):
    with Client("http://there", transport=httpx.MockTransport(script), **settings) as client:
        return ask(client)


def ask_async(script, ask, **settings):
    async def send():
        async with AsyncClient("http://there", transport=httpx.MockTransport(script), **settings) as client:
            return await ask(client)

    return asyncio.run(send())


@pytest.fixture(params=[ask_sync, ask_async])
def ask(request):
    return request.param


def run_function(client):
    return client.run_function("s", "f", {"x": 1})


def create_session(client):
    return client.create_session()


def error(code, message="No.", **data):
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message, "data": data}}


@pytest.mark.parametrize(("made_in", "methods"), [(ClientMethods, CLIENTS_METHODS), (AgentMethods, AGENTS_METHODS)])
def test_each_server_method_has_a_client_method_like_it(made_in, methods):
    server_methods = {each.declared.name.removeprefix("rpc."): {*each.model_fields} for each in methods}
    client_methods = {
        name: {*each.signature.parameters} - {"self"}
        for name, each in vars(made_in).items()
        if isinstance(each, method)
    }
    assert client_methods == server_methods


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Client, "get_session(self, session_id: str) -> Session"),
        (AsyncClient, "async get_session(self, session_id: str) -> Session"),
        (AgentClient, "list_functions(self, *, format: Literal['native', 'openai', 'anthropic', 'gemini', 'mcp']"),
    ],
)
def test_help_shows_the_methods_with_their_signatures(kind, expected):
    text = pydoc.plain(pydoc.render_doc(kind)).replace("toolpack_server.client.methods.", "").replace("typing.", "")
    # Python 3.13 and later break long lines.
    assert "".join(expected.split()) in "".join(line.removeprefix(" |") for line in text.splitlines()).replace(" ", "")
    assert str(inspect.signature(Client("http://there").get_session)).startswith("(session_id: str) -> ")


@pytest.mark.parametrize("kind", [Client, AsyncClient, AgentClient, AsyncAgentClient])
@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost:8000", "/agents/secret", "ftp://there", "http://", ""])
def test_a_url_without_a_host_is_refused_and_not_shown(kind, url):
    with pytest.raises(ValueError, match=r"begins with http:// or https:// and a host") as refused:
        kind(url)
    assert "secret" not in str(refused.value)


def test_an_invalid_url_is_refused_at_once():
    for url, why in [("http://there:port", "Invalid port"), ("http://x\n", "Invalid non-printable ASCII")]:
        with pytest.raises(ValueError, match=f"^The server's URL can't be read: {why}.*[^.]\\.$"):
            Client(url)


@pytest.mark.parametrize("kind", [Client, AsyncClient, AgentClient, AsyncAgentClient])
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"retries": -1}, "retries must be a whole number, at least 0, not -1"),
        ({"retries": None}, "retries must be a whole number, at least 0, not None"),
        ({"timeout_seconds": 0}, "timeout_seconds must be a number of seconds above 0, not 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be a number of seconds above 0, not nan"),
        ({"timeout_seconds": "5"}, "timeout_seconds must be a number of seconds above 0, not '5'"),
    ],
)
def test_unusable_timeouts_and_retries_are_refused_at_once(kind, options, why):
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        kind("http://there", **options)


@pytest.mark.parametrize("token", ["two words", "secret\n", "gehe\u00efm"])
def test_an_invalid_token_is_refused_at_once_and_not_shown(token):
    with pytest.raises(ValueError, match="visible ASCII characters") as refused:
        Client("http://there", token=token)
    assert token.strip() not in str(refused.value)


def test_a_url_with_a_query_is_refused_at_once():
    with pytest.raises(ValueError, match="no query and no fragment"):
        Client("http://there/?key=1")


def test_wrong_arguments_name_the_method():
    client = Client("http://there")
    with pytest.raises(TypeError, match=r"^run_function\(\) got an unexpected keyword argument 'title'$"):
        client.run_function("id", "lend", title="Emma")
    with pytest.raises(TypeError, match=r"^get_session\(\) missing a required argument: 'session_id'$"):
        client.get_session()


def test_a_missing_package_is_named_with_the_remedy():
    for missing, module, remedy in [
        ("httpx", "toolpack_server.client", "pip install 'toolpack-server[client]'"),
        ("agentdojo", "toolpack_server.remote_runtime", "pip install 'toolpack-server[agentdojo,client]'"),
    ]:
        program = f"import sys; sys.modules['{missing}'] = None; import {module}"
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert remedy in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_agent_takes_a_session_and_not_an_id(kind):
    with pytest.raises(TypeError, match=r"^agent\(\) takes a session .*, not its id$"):
        kind().agent("0" * 48)


def test_an_agent_uses_its_session_and_nothing_else(url):
    async def use(agent_url):
        async with AsyncAgentClient(agent_url) as agent:
            await agent.run_function("move_to_savings", '{"amount": "50.00"}')
            async with agent.batch() as batch:
                reply = batch.run_function("get_balance")
            return reply.result()["result"]

    with Client(url) as client:
        session = client.create_session(["bank"])
        with AgentClient(url + session["agent_path"]) as agent:
            assert len(agent.list_functions()["result"]) == 13
            assert agent.run_function("move_to_savings", {"amount": "100.00"})["error"] is None
            with agent.batch() as batch:
                replies = [batch.run_function("get_balance"), batch.list_functions(format="mcp")]
            assert replies[0].result()["result"] == "1740.25"
            assert "inputSchema" in replies[1].result()["result"][0]
        assert asyncio.run(use(url + session["agent_path"])) == "1690.25"
        client.close_session(session["session_id"])
    with AgentClient(url + session["agent_path"]) as agent, pytest.raises(ReplyError) as refusal:
        agent.list_functions()
    assert refusal.value.code == -32001


def test_a_batch_runs_in_order_with_one_result_each(url, monkeypatch):
    monkeypatch.setattr(batches, "BATCH_SIZE", 3)
    with Client(url) as client:
        session_id = client.create_session(["bank"])["session_id"]
        with client.batch() as batch:
            moves = [batch.run_function(session_id, "move_to_savings", {"amount": "1.00"}) for _ in range(4)]
            wrong = batch.get_session("never was")
            balance = batch.get_environment(session_id, pointer="/bank/account/balance")
            with pytest.raises(NoReplyError, match="when the `with` block ends"):
                balance.result()
        assert [move.result()["error"] for move in moves] == [None] * 4
        assert balance.result() == "1836.25"
        with pytest.raises(ReplyError) as refused:
            wrong.result()
        assert refused.value.code == -32001
        with client.batch():
            pass  # nothing is sent


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_replies_after_a_failed_part_of_a_batch_name_the_reason(monkeypatch, kind):
    monkeypatch.setattr(batches, "BATCH_SIZE", 1)
    script, replies = Script(httpx.ConnectError("refused")), []
    client = kind("http://there", transport=httpx.MockTransport(script), retries=0)

    def fill(batch):
        replies.extend([batch.get_session("s"), batch.get_session("t")])

    def send():
        with client.batch() as batch:
            fill(batch)

    async def send_async():
        async with client.batch() as batch:
            fill(batch)

    with pytest.raises(NoReplyError):
        asyncio.run(send_async()) if kind is AsyncClient else send()
    for reply in replies:
        with pytest.raises(NoReplyError, match="is the server running"):
            reply.result()


def batch_sync(script, **settings):
    client = Client("http://there", transport=httpx.MockTransport(script), **settings)
    with client, client.batch() as batch:
        return [batch.get_session("s"), batch.run_function("s", "f"), batch.close_session("s")]


def batch_async(script, **settings):
    async def send():
        client = AsyncClient("http://there", transport=httpx.MockTransport(script), **settings)
        async with client, client.batch() as batch:
            return [batch.get_session("s"), batch.run_function("s", "f"), batch.close_session("s")]

    return asyncio.run(send())


@pytest.mark.parametrize("send", [batch_sync, batch_async])
@pytest.mark.usefixtures("pauses")
def test_a_batch_is_retried_as_a_whole_or_not_at_all(send):
    answers = [{"jsonrpc": "2.0", "id": number, "result": result} for number, result in ((3, True), (1, SESSION))]
    script = Script((503, error(-32000)), [*answers, error(-32006) | {"id": 2}])
    replies = send(script)
    assert [script.requests[0]] == script.requests[1:]
    assert [request["method"] for request in script.requests[0]] == ["get_session", "run_function", "close_session"]
    assert (replies[0].result(), replies[2].result()) == (SESSION, True)
    with pytest.raises(ReplyError, match="-32006"):
        replies[1].result()
    partly = send(Script(answers[:1]))
    with pytest.raises(NoReplyError, match="get_session got no answer, but other requests of its batch did"):
        partly[0].result()
    script_without_answer = Script(httpx.ReadTimeout("too long"))
    with pytest.raises(NoReplyError, match="A batch got no answer"):  # closing a session twice isn't idempotent
        send(script_without_answer)
    with pytest.raises(ReplyError, match="too many"):
        send(Script(error(-32007, "too many")))


def test_a_batch_whose_block_raises_is_not_sent(url):
    with Client(url) as client:
        session_id = client.create_session(["bank"])["session_id"]
        with contextlib.suppress(ZeroDivisionError), client.batch() as batch:
            batch.close_session(session_id)
            raise ZeroDivisionError
        assert client.get_session(session_id)["session_id"] == session_id


def test_a_session_goes_through_all_methods(url):
    with Client(url) as client:
        session = client.create_session(["bank"], labels={"run": "sync"}, ttl_seconds=60)
        session_id = session["session_id"]
        assert client.get_session(session_id)["labels"] == {"run": "sync"}
        names = [function["name"] for function in client.list_functions(session_id)["result"]]
        assert client.run_function(session_id, names[0])["error"] is None
        environment = client.get_environment(session_id)
        assert client.get_environment(session_id, pointer="/bank") == environment["bank"]
        assert client.diff_environment(session_id) == []
        assert [record["function"] for record in client.get_trace(session_id)] == [names[0]]
        forks = client.fork_session(session_id, count=2, labels={"run": "fork"})
        assert forks[0].get("parent") == {
            "session_id": session_id,
            "version": client.get_session(session_id)["version"],
        }
        assert client.reset_session(session_id)["version"] > 0
        assert client.get_environment(session_id, format="snapshot")["toolpacks"] == ["bank"]
        assert len(client.list_sessions(labels={"run": "fork"})) == 2
        assert client.close_session(labels={"run": "fork"}) == 2
        assert client.close_session(session_id) == 1
        assert client.discover()["openrpc"]
        with pytest.raises(ReplyError) as refused:
            client.get_session(session_id)
    assert refused.value.code == -32001
    assert refused.value.data == {"type": "SessionNotFoundError"}
    assert refused.value.message in str(refused.value)


def test_async_calls_of_many_sessions_run_concurrently(url):
    async def main():
        async with AsyncClient(url) as client:
            sessions = await asyncio.gather(*(client.create_session(["bank"]) for _ in range(20)))
            ids = [session["session_id"] for session in sessions]
            results = await asyncio.gather(*(client.run_function(i, "get_balance") for i in ids))
            await asyncio.gather(*(client.close_session(i) for i in ids))
            return results

    assert [envelope["error"] for envelope in asyncio.run(main())] == [None] * 20


def test_a_token_is_sent():
    tokens = []

    def answer(request):
        tokens.append(request.headers["authorization"])
        return httpx.Response(200, json=OK)

    ask_sync(answer, run_function, token="secret")
    assert tokens == ["Bearer secret"]


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("silence"),
        httpx.RemoteProtocolError("cut off"),
        (503, {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Draining.", "data": {}}}),
        (502, "<html>bad gateway</html>"),
        error(-32006, retry_after_seconds=0),
    ],
)
def test_a_call_is_retried_with_the_same_call_id(ask, pauses, trouble):
    script = Script(trouble, trouble, OK)
    assert ask(script, run_function) == {"result": 1, "error": None}
    first, *others = script.requests
    assert first["params"]["call_id"]
    assert others == [first, first]
    assert len(pauses) == 2
    assert 0 < pauses[0] <= pauses[1]


@pytest.mark.parametrize(
    ("change", "result"),
    [
        (create_session, SESSION),
        (lambda client: client.fork_session("s", count=2), [SESSION, SESSION]),
        (lambda client: client.reset_session("s", version=1), SESSION),
        (lambda client: client.import_bundle("b", mode="replay"), REPLAY),
        (lambda client: client.replay_session("s"), REPLAY),
    ],
)
def test_creates_and_resets_are_retried_with_the_same_call_id(ask, pauses, change, result):
    script = Script(httpx.ReadTimeout("silence"), {"result": result})
    assert ask(script, change) == result
    first, second = script.requests
    assert len(first["params"]["call_id"]) == 36
    assert second == first
    assert len(pauses) == 1


def test_each_call_gets_a_new_call_id_unless_one_is_passed(ask):
    script = Script(OK, OK, OK)
    ask(script, run_function)
    ask(script, run_function)
    ask(script, lambda client: client.run_function("s", "f", call_id="mine"))
    ids = [request["params"]["call_id"] for request in script.requests]
    assert len(set(ids)) == 3
    assert ids[2] == "mine"


def test_a_retry_waits_for_retry_after_seconds(ask, pauses):
    assert ask(Script({"error": OVERLOADED}, {"result": SESSION}), create_session) == SESSION
    assert 2.5 < pauses[0] < 3


@pytest.mark.parametrize("trouble", [httpx.ConnectError("refused"), (503, "starting")])
def test_unhandled_requests_are_retried(ask, pauses, trouble):
    assert ask(Script(trouble, {"result": SESSION}), create_session) == SESSION
    assert len(pauses) == 1


@pytest.mark.parametrize("trouble", [httpx.ReadTimeout("silence"), httpx.RemoteProtocolError("cut off")])
def test_possibly_handled_requests_are_not_retried(ask, pauses, trouble):
    message = rf"close_session got no answer from http://there \({type(trouble).__name__}: {trouble}\)"
    with pytest.raises(NoReplyError, match=message):
        ask(Script(trouble), lambda client: client.close_session("s"))
    assert not pauses


@pytest.mark.parametrize("status", [502, 504])
def test_gateway_errors_are_retried_if_repeating_is_safe(ask, pauses, status):
    assert ask(Script((status, "Bad gateway"), OK), run_function) == OK["result"]
    assert len(pauses) == 1


@pytest.mark.parametrize("status", [502, 504])
def test_requests_a_proxy_may_have_forwarded_are_not_retried(ask, pauses, status):
    with pytest.raises(ReplyError, match=f"HTTP {status}"):
        ask(Script((status, "Bad gateway")), lambda client: client.close_session("s"))
    assert not pauses


@pytest.mark.parametrize("kind", [AgentClient, AsyncAgentClient])
def test_a_missing_server_is_one_error_without_the_agents_key(kind):
    async def ask():
        call = kind(f"http://127.0.0.1:{free_port()}/agents/key", retries=0).run_function("f")
        return await call if inspect.isawaitable(call) else call

    with pytest.raises(NoReplyError) as refused:
        asyncio.run(ask())
    text = "".join(traceback.format_exception(refused.value))
    assert text.count("Traceback") == 1
    assert "/agents/key" not in text.splitlines()[-1]


@pytest.mark.parametrize(("scheme", "count"), [("http", 0), ("https", 1)])
def test_all_clients_share_one_lazy_tls_context(monkeypatch, scheme, count):
    contexts = []

    def make():
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return contexts[-1]

    client_module._tls.cache_clear()
    monkeypatch.setattr(httpx, "create_ssl_context", make)
    for _ in range(3):
        Client(f"{scheme}://there").close()
        AgentClient(f"{scheme}://there/agents/key").close()
        asyncio.run(AsyncClient(f"{scheme}://there").aclose())
    assert len(contexts) == count
    assert client_module._tls(is_used=False).verify_mode is ssl.CERT_REQUIRED
    client_module._tls.cache_clear()


def test_an_https_url_of_an_http_server_gets_a_hint(ask):
    broken = httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    with pytest.raises(NoReplyError, match="does it speak https, or http"):
        ask(Script(broken), run_function, retries=0)


def test_a_client_gives_up_after_the_last_retry(ask, pauses):
    script = Script(*[httpx.ConnectError("refused")] * 3)
    with pytest.raises(NoReplyError, match="is the server running"):
        ask(script, run_function, retries=2)
    assert len(pauses) == 2


def test_a_request_may_time_out_three_times(ask, pauses):
    with pytest.raises(NoReplyError, match="silence"):
        ask(Script(*[httpx.ReadTimeout("silence")] * 3), run_function)
    assert len(pauses) == 2


def test_a_waiting_request_has_a_longer_timeout():
    no_messages = {"jsonrpc": "2.0", "result": {"messages": [], "done": False}}
    script = Script({**no_messages, "id": 1}, [{**no_messages, "id": number} for number in (1, 2)])
    with AgentClient("http://there/agents/key", transport=httpx.MockTransport(script), timeout_seconds=10) as agent:
        agent.listen(wait_seconds=20)
        with agent.batch() as batch:
            replies = [batch.listen(wait_seconds=20) for _ in range(2)]
        assert [reply.result()["done"] for reply in replies] == [False, False]
    assert script.seconds == [30, 50]


@pytest.mark.parametrize("answer", [error(-32602, "Invalid params", detail="x: wrong"), (401, error(-32000, "Token!"))])
def test_a_refusal_is_not_retried(ask, pauses, answer):
    expected = (answer[1] if isinstance(answer, tuple) else answer)["error"]
    with pytest.raises(ReplyError) as refused:
        ask(Script(answer), run_function)
    assert (refused.value.code, refused.value.message, refused.value.data) == tuple(expected.values())
    assert not pauses


def test_an_answer_that_is_not_json_rpc_is_an_error(ask):
    with pytest.raises(ReplyError, match="is this a Toolpack Server") as refused:
        ask(Script((404, "<html>")), create_session)
    assert refused.value.data == {"status": 404}


def test_a_failed_call_raises_with_raise_on_error(url):
    with Client(url) as client:
        session_id = client.create_session(["bank"])["session_id"]
        assert client.run_function(session_id, "no_such")["error"].startswith("ToolNotFoundError: ")
        with pytest.raises(ReplyError) as refused:
            client.run_function(session_id, "no_such", raise_on_error=True)
        assert refused.value.code == -32003


def test_arguments_without_a_json_form_are_refused_by_the_client():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value, kind in [(float("nan"), ValueError), (b"", TypeError), (10**5000, ValueError), (deep, ValueError)]:
        with pytest.raises(kind, match=r"^run_function\(\) has an argument .* JSON"):
            ask_sync(Script(), lambda client, value=value: client.run_function("s", "f", {"x": value}))

        def batch(client, value=value):
            with client.batch() as batch:
                batch.get_session("s")
                batch.run_function("s", "f", {"x": value})

        with pytest.raises(kind, match=r"^run_function\(\) has an argument .* JSON"):
            ask_sync(Script(), batch)
