"""A client of a hostile server returns a result in the promised form or raises `ClientError`, within limits."""

import asyncio
import contextlib
import inspect
import json
import logging
import time
from types import SimpleNamespace

import httpx
import pytest
from hostile_server import REPLIES, bomb, endless, server_that, trickle, trickled_head
from hypothesis import given
from hypothesis import strategies as some
from test_client import OK, REPLAY, SESSION, Script

from toolpack_server.base.errors import ClientError, NoReplyError, ReplyError
from toolpack_server.client import AsyncClient, Client, exchange
from toolpack_server.client import clients as client_module
from toolpack_server.client.exchange import RETRIES
from toolpack_server.client.methods import ClientMethods
from toolpack_server.client.requests import method
from toolpack_server.client.shapes import fits
from toolpack_server.training import rollouts
from toolpack_server.training.environments import TrainingEnvironment

METHODS = {name: each for name, each in vars(ClientMethods).items() if isinstance(each, method)}


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    delays = []

    async def pause(seconds):
        delays.append(seconds)

    monkeypatch.setattr(client_module, "time", SimpleNamespace(sleep=delays.append))
    monkeypatch.setattr(client_module, "asyncio", SimpleNamespace(sleep=pause, timeout=asyncio.timeout))
    return delays


def ask_sync(url, **options):
    with Client(url, **options) as client:
        return client.list_toolpacks()


def ask_async(url, **options):
    async def send():
        async with AsyncClient(url, **options) as client:
            return await client.list_toolpacks()

    return asyncio.run(send())


BOTH = pytest.mark.parametrize("ask", [ask_sync, ask_async])


@BOTH
@pytest.mark.parametrize(("answers", "why"), [(endless, "longer than"), (bomb, "compressed")])
def test_an_endless_answer_is_an_error(ask, answers, why, monkeypatch):
    monkeypatch.setattr(exchange, "MAX_REPLY_BYTES", 2**20)
    with server_that(answers) as url, pytest.raises(NoReplyError, match=why):
        ask(url)


@pytest.mark.parametrize(("ask", "answers"), [(ask_sync, trickle), (ask_async, trickle), (ask_async, trickled_head)])
def test_a_trickling_answer_times_out(ask, answers):
    with server_that(answers) as url, pytest.raises(NoReplyError, match="the answer didn't end"):
        ask(url, timeout_seconds=0.3)


@pytest.mark.parametrize("seconds", [3600, 1e300, float("inf"), float("nan"), -5, "60", True, [1]])
def test_a_server_cant_make_a_client_sleep(seconds, pauses):
    overloaded = {"error": {"code": -32006, "message": "", "data": {"retry_after_seconds": seconds}}}
    with Client("http://there", transport=httpx.MockTransport(_texts(*[overloaded] * RETRIES, OK))) as client:
        assert client.run_function("s", "f") == OK["result"]
    assert len(pauses) == RETRIES
    assert all(0 < pause <= 10 for pause in pauses)


def _texts(*replies):
    """Yield answers with JSON as Python writes it, infinities included."""
    remaining = [*replies]
    return lambda _request: httpx.Response(200, content=json.dumps(remaining.pop(0)).encode())


def test_the_default_retries_outlast_an_ordinary_restart(pauses):
    trouble = [httpx.ConnectError("refused")] * RETRIES
    with Client("http://there", transport=httpx.MockTransport(Script(*trouble, OK))) as client:
        assert client.run_function("s", "f") == OK["result"]
    assert 30 < sum(pauses) < 43
    assert max(pauses) <= 5


def test_an_outage_may_last_for_hours(pauses):
    trouble = [httpx.ConnectError("refused")] * 2000
    with Client("http://there", transport=httpx.MockTransport(Script(*trouble, OK)), retries=2000) as client:
        assert client.run_function("s", "f") == OK["result"]
    assert max(pauses) <= 5


@pytest.mark.parametrize(
    "path",
    [
        "@127.0.0.2/agents/x",
        ".evil.example/agents/x",
        "http://evil.example/",
        ":1/",
        5,
        "/é\r\n",
        "",
        "/" + "x" * 70_000,
    ],
)
def test_an_agent_path_must_belong_to_this_server(path):
    paths = []

    def answer(request):
        paths.append(request.url.host)
        return httpx.Response(200, json={"result": {**SESSION, "agent_path": path}})

    with Client("http://there", transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(ReplyError):
            client.agent(client.create_session())
        with pytest.raises(ReplyError, match="isn't a path"):
            client.agent({"agent_path": path})
    assert set(paths) == {"there"}


@given(
    name=some.sampled_from(sorted(METHODS)),
    reply=REPLIES | some.just({"id": 1, "result": SESSION}),
    status=some.sampled_from([200, 404, 503]),
    batch=some.booleans(),
)
def test_any_bad_answer_raises_a_client_error(name, reply, status, batch):
    arguments = {each: "s" for each, parameter in METHODS[name].signature.parameters.items()
              if parameter.default is inspect.Parameter.empty and each != "self"}  # fmt: skip

    def answer(_request):
        return httpx.Response(status, content=json.dumps([reply] if batch else reply).encode())

    client = Client("http://there", transport=httpx.MockTransport(answer), retries=1)
    with client, contextlib.suppress(ClientError):
        if batch:
            with client.batch() as collected:
                returned = getattr(collected, name)(**arguments)
            result = returned.result()
        else:
            result = getattr(client, name)(**arguments)
        assert fits(METHODS[name].signature.return_annotation)(result)


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff\xfe", b"", b"9" * 10_000, b'{"result": 1}'])
def test_an_invalid_answer_is_an_error(content):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    with Client("http://there", transport=transport) as client, pytest.raises(ReplyError, match="Toolpack Server"):
        client.create_session()


def test_environments_and_rollouts_raise_only_client_errors():
    results = {"create_session": {**SESSION, "task": "a/b"}, "evaluate_session": {"valid": "yes"}, "list_sessions": []}

    def answer(request):
        name = json.loads(request.content)["method"]
        return httpx.Response(200, json={"result": results.get(name, {"prompt": 5})})

    async def run():
        async with AsyncClient("http://there", transport=httpx.MockTransport(answer), retries=0) as client:
            async for (rollout,) in rollouts(client, ["a/b"], _play, labels={"run": "x"}, group=1):
                return rollout
        return None

    assert isinstance(asyncio.run(run()).error, ClientError)
    environment = object.__new__(type("Made", (TrainingEnvironment,), {"_of_task": "a/b"}))
    environment.__init__("http://there", "a/b")
    environment._client = Client("http://there", transport=httpx.MockTransport(answer), retries=0)
    assert environment.reset() == ""
    assert environment.problem


async def _play(_agent, _session):
    return None


def test_an_outage_is_logged_once(caplog):
    trouble = [httpx.ConnectError("refused")] * 10
    caplog.set_level(logging.INFO, "toolpack_server.client")
    with Client("http://there", transport=httpx.MockTransport(Script(*trouble, OK, OK))) as client:
        client.run_function("s", "f")
        client.run_function("s", "f")
    messages = [record.getMessage() for record in caplog.records if record.name == "toolpack_server.client"]
    assert messages == [
        "http://there doesn't answer. Idempotent requests are retried.",
        "The server answers again.",
    ]


def test_a_busy_server_is_not_an_outage(caplog, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    busy = {"error": {"code": -32006, "message": "Busy.", "data": {}}}
    with Client("http://there", transport=httpx.MockTransport(Script(*[busy] * 10, OK))) as client:
        client.run_function("s", "f")
    assert not [record for record in caplog.records if record.name == "toolpack_server.client"]


def test_a_client_ignores_unknown_members():
    newer = {**SESSION, "more": 1, "parent": {"session_id": "p", "version": 0, "more": 2}}
    assert fits(METHODS["create_session"].signature.return_annotation)(newer)
    assert fits(METHODS["get_trace"].signature.return_annotation)([{"kind": "of-tomorrow", "index": "first"}])
    assert fits(METHODS["replay_session"].signature.return_annotation)(
        {**REPLAY, "diverged": {"index": 1, "what": "?"}}
    )
    assert not fits(METHODS["create_session"].signature.return_annotation)({**SESSION, "version": "1"})
    assert not fits(METHODS["import_bundle"].signature.return_annotation)({"session": SESSION})
