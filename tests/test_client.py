"""The two clients behave alike: every method, typed results, and retries only if they are safe."""

import asyncio
import inspect
import json
from types import SimpleNamespace

import httpx
import pytest
from http_server import running

from server.client import AsyncClient, Client
from server.client import clients as client_module
from server.client.methods import ClientMethods, method
from server.errors import NoReplyError, ReplyError
from server.packs.loading import load_catalog
from server.rpc.methods import Methods as ServerMethods

OK = {"jsonrpc": "2.0", "id": 1, "result": {"result": 1, "error": None}}
OVERLOADED = {"code": -32006, "message": "Too much waits.", "data": {"retry_after_seconds": 2.5}}


@pytest.fixture(scope="module")
def url():
    with running(load_catalog((), ("bank",)), store="memory:") as served:
        yield served


@pytest.fixture
def pauses(monkeypatch):
    """Record the pauses instead of sleeping."""
    noted = []

    async def pause(seconds):
        noted.append(seconds)

    # Only in the client's module: the server's threads must really sleep.
    monkeypatch.setattr(client_module, "time", SimpleNamespace(sleep=noted.append))
    monkeypatch.setattr(client_module, "asyncio", SimpleNamespace(sleep=pause))
    return noted


class Script:
    """Answers requests from a list of answers, and records the requests."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request):
        self.requests.append(json.loads(request.content))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        return httpx.Response(status, json=body) if not isinstance(body, str) else httpx.Response(status, text=body)


def ask_sync(script, ask, **settings):
    with Client("http://there", transport=httpx.MockTransport(script), **settings) as client:
        return ask(client)


def ask_async(script, ask, **settings):
    async def asked():
        async with AsyncClient("http://there", transport=httpx.MockTransport(script), **settings) as client:
            return await ask(client)

    return asyncio.run(asked())


@pytest.fixture(params=[ask_sync, ask_async])
def ask(request):
    return request.param


def run_function(client):
    return client.run_function("s", "f", {"x": 1})


def create_session(client):
    return client.create_session()


def error(code, message="No.", **data):
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message, "data": data}}


def test_there_is_a_method_with_the_same_parameters_for_every_one_of_the_server():
    for wanted in ServerMethods.all(ServerMethods.__new__(ServerMethods)):
        made = vars(ClientMethods)[wanted.name.removeprefix("rpc.")]
        assert isinstance(made, method)
        parameters = set(inspect.signature(made._prepare).parameters) - {"self"}
        assert parameters == set(wanted.params.model_fields), wanted.name


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
        assert forks[0]["parent"] == {"session_id": session_id, "version": client.get_session(session_id)["version"]}
        assert client.reset_session(session_id)["version"] > 0
        assert client.export_session(session_id)["toolpacks"] == ["bank"]
        assert len(client.list_sessions(labels={"run": "fork"})) == 2
        assert client.close_sessions({"run": "fork"}) == 2
        assert client.close_session(session_id) is True
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
            done = await asyncio.gather(*(client.run_function(i, "get_balance") for i in ids))
            await asyncio.gather(*(client.close_session(i) for i in ids))
            return done

    assert [envelope["error"] for envelope in asyncio.run(main())] == [None] * 20


def test_a_token_is_sent():
    seen = []

    def answer(request):
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json=OK)

    ask_sync(answer, run_function, token="secret")
    assert seen == ["Bearer secret"]


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
    "change",
    [
        create_session,
        lambda client: client.fork_session("s", count=2),
        lambda client: client.reset_session("s", version=1),
    ],
)
def test_what_creates_or_resets_sessions_is_sent_again_with_the_same_call_id(ask, pauses, change):
    script = Script(httpx.ReadTimeout("silence"), {"result": "done"})
    assert ask(script, change) == "done"
    first, second = script.requests
    assert len(first["params"]["call_id"]) == 36
    assert second == first
    assert len(pauses) == 1


def test_every_call_has_a_call_id_of_its_own_unless_one_is_given(ask):
    script = Script(OK, OK, OK)
    ask(script, run_function)
    ask(script, run_function)
    ask(script, lambda client: client.run_function("s", "f", call_id="mine"))
    ids = [request["params"]["call_id"] for request in script.requests]
    assert len(set(ids)) == 3
    assert ids[2] == "mine"


def test_a_retry_waits_for_retry_after_seconds(ask, pauses):
    assert ask(Script({"error": OVERLOADED}, {"result": "session"}), create_session) == "session"
    assert 2.5 < pauses[0] < 3


@pytest.mark.parametrize("trouble", [httpx.ConnectError("refused"), (503, "starting")])
def test_requests_that_were_certainly_not_handled_are_retried(ask, pauses, trouble):
    assert ask(Script(trouble, {"result": "session"}), create_session) == "session"
    assert len(pauses) == 1


@pytest.mark.parametrize("trouble", [httpx.ReadTimeout("silence"), httpx.RemoteProtocolError("cut off")])
def test_requests_that_may_have_been_handled_are_not_retried(ask, pauses, trouble):
    with pytest.raises(NoReplyError, match="close_session got no answer") as refused:
        ask(Script(trouble), lambda client: client.close_session("s"))
    assert refused.value.__cause__ is trouble
    assert not pauses


def test_it_stops_after_the_last_retry(ask, pauses):
    script = Script(*[httpx.ConnectError("refused")] * 3)
    with pytest.raises(NoReplyError, match="is the server running"):
        ask(script, run_function, retries=2)
    assert len(pauses) == 2


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
    with pytest.raises(ValueError, match="JSON"):
        ask_sync(Script(), lambda client: client.run_function("s", "f", {"x": float("nan")}))
