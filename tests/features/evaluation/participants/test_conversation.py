"""Messages between participants: they are ordered, belong to the path, and reach only their recipients.

A participant can wait for its next message.
"""

import asyncio
import json
import threading

import httpx
import pytest
import server_process
import serving
from market import CATALOG, Played, play
from serving import Bench, open_store, refused, wait_until

from toolpack_server import Toolpack
from toolpack_server.client import AgentClient
from toolpack_server.features.evaluation.participants.conversation import Conversation
from toolpack_server.features.evaluation.participants.message_waiters import MessageWaiters
from toolpack_server.features.protocols.mcp.messages import CALL_ID_KEY
from toolpack_server.features.protocols.mcp.protocol import Mcp
from toolpack_server.packs.catalog import Catalog
from toolpack_server.sessions import manager

THREE = {"buyer": {"answers": True}, "seller": {}}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def bench(request, store_url, make_bench):
    return make_bench(CATALOG, store_url(request.param))


@pytest.fixture(scope="module")
def market():
    with Bench(CATALOG) as server:
        yield server


def listen(played, name, **params):
    return played.send(name, "listen", **params)


def contents_for(played, name, **params):
    return [each["content"] for each in listen(played, name, **params)["messages"]]


def waits(bench):
    return bench.service.feature(Conversation).waiters


def start_listening(played, name, **params):
    """Begin to listen. Return the future of the answer once the request waits."""
    count = len(waits(played.bench))
    later = played.bench.later("listen", agent_key=played.key(name), wait_seconds=30, **params)
    wait_until(lambda: len(waits(played.bench)) > count, "the wait")
    return later


# Messages


def test_participant_sees_only_messages_from_and_to_it(bench):
    played = play(bench, THREE)
    assert played.send("buyer", "say", text="5?", to="seller") is True
    assert played.send("agent", "say", text="Hello.") is True
    assert played.send("seller", "say", text="No.", to="buyer") is True
    bench.rpc("add_message", session_id=played.id, role="user", content="for the evaluator")
    first = {"index": 0, "by": "buyer", "to": "seller", "content": "5?"}
    second = {"index": 1, "by": "agent", "content": "Hello."}
    third = {"index": 2, "by": "seller", "to": "buyer", "content": "No."}
    for name in ("buyer", "seller"):
        assert listen(played, name) == {"messages": [first, second, third], "done": False}
        assert listen(played, name, after=1) == {"messages": [third], "done": False}
    assert listen(played, "agent") == {"messages": [{**second, "index": 0}], "done": False}
    records = [(each["role"], each.get("by"), each.get("to"), each["content"]) for each in played.trace()]
    assert records == [
        ("user", "buyer", "seller", "5?"),
        ("assistant", "agent", None, "Hello."),
        ("user", "seller", "buyer", "No."),
        ("user", None, None, "for the evaluator"),
    ]


def test_repeated_call_id_sends_a_message_once(bench):
    played = play(bench, THREE)
    for _ in range(2):
        assert played.send("buyer", "say", text="5?", call_id="x") is True
        assert played.send("seller", "say", text="No.", call_id="x") is True
    refused(-32009, played.send, "buyer", "say", text="6?", call_id="x")
    refused(-32009, played.send, "buyer", "say", text="5?", to="seller", call_id="x")
    refused(-32009, played.call, "buyer", "look", "x")
    assert contents_for(played, "agent") == ["5?", "No."]
    assert [each.get("call_id") for each in played.trace()] == ["buyer/x", "seller/x"]


def test_invalid_messages_and_listen_requests_are_rejected(market):
    def detail(error):
        return error.data["detail"]

    played, alone = play(market, THREE), Played(market, market.rpc("create_session"))
    key = alone.session["agent_path"].removeprefix("/agents/")
    just = play(market, {"agent": {"max_calls": 1}})
    nobody = "The session has no other participant: create it with `participants`."
    for agent_key in (key, just.key("agent")):
        assert detail(refused(-32602, market.rpc, "say", agent_key=agent_key, text="Hi.")) == nobody
        assert detail(refused(-32602, market.rpc, "listen", agent_key=agent_key)) == nobody
    for to in ("x", "agent", "client"):
        error = detail(refused(-32602, played.send, "agent", "say", text="Hi.", to=to))
        assert error == f"There is no other participant {to!r}: choose from buyer, seller."
    played.send("agent", "say", text="Hi.")
    error = detail(refused(-32602, listen, played, "buyer", after=7))
    assert error == (
        "There is no message 7: the number of your messages is 1. "
        "If the session was reset, listen again with after = -1."
    )
    refused(-32602, listen, played, "buyer", wait_seconds=31)
    refused(-32602, listen, played, "buyer", after=-2)
    refused(-32601, market.rpc, "say", text="Hi.")
    long = "x" * (market.settings.max_record_bytes + 1)
    assert "TOOLPACK_MAX_RESULT_BYTES" in refused(-32007, played.send, "buyer", "say", text=long).message
    played.send("buyer", "submit_answer", answer="sold")
    error = refused(-32014, played.send, "seller", "say", text="Wait!").message
    assert error == "The answer has been submitted, so no further message is accepted."
    assert listen(played, "seller", after=0, wait_seconds=30) == {"messages": [], "done": True}


def test_long_conversation_is_returned_in_pieces(make_bench):
    bench = make_bench(CATALOG, max_list_bytes=1024)
    played = play(bench, THREE)
    for number in range(6):
        played.send("buyer", "say", text=f"{number}" * 400)
    played.send("buyer", "say", text="long " * 500)
    played.send("buyer", "submit_answer")
    messages, is_done, answers = [], False, 0
    while not is_done:
        answer = listen(played, "seller", after=len(messages) - 1, wait_seconds=30)
        messages, is_done, answers = messages + answer["messages"], answer["done"], answers + 1
    assert [each["index"] for each in messages] == list(range(7))
    assert messages[-1]["content"] == "long " * 500
    assert answers > 3


def test_conversation_belongs_to_the_path(bench):
    played = play(bench, THREE)
    played.send("buyer", "say", text="one")
    played.call("buyer", "bid", amount=1)
    played.send("seller", "say", text="two", to="buyer")
    played.call("buyer", "bid", amount=2)
    played.send("buyer", "say", text="three")
    (early,) = (Played(bench, each) for each in bench.rpc("fork_session", session_id=played.id, version=1))
    (late,) = (Played(bench, each) for each in bench.rpc("fork_session", session_id=played.id))
    early.send("seller", "say", text="other")
    (grandchild,) = (Played(bench, each) for each in bench.rpc("fork_session", session_id=early.id))
    bench.rpc("reset_session", session_id=played.id, version=1)
    played.send("agent", "say", text="again")
    bench.rpc("close_session", session_id=early.id)
    assert contents_for(played, "buyer") == ["one", "two", "again"]
    assert contents_for(late, "buyer") == ["one", "two", "three"]
    assert contents_for(late, "agent") == ["one", "three"]
    assert contents_for(grandchild, "buyer") == ["one", "two", "other"]
    assert contents_for(grandchild, "agent", after=0) == ["other"]
    grandchild.send("agent", "say", text="last")
    assert contents_for(grandchild, "seller", after=2) == ["last"]


def test_bundles_and_replays_include_the_conversation(bench):
    played = play(bench, THREE)
    played.send("buyer", "say", text="5?", to="seller", call_id="x")
    played.call("seller", "bid", amount=5)
    played.send("seller", "say", text="Yes.")
    played.send("buyer", "submit_answer", answer="sold")
    exact = bench.rpc("import_bundle", bundle=played.bundle())
    replays = [
        bench.rpc("import_bundle", bundle=played.bundle(), mode="replay"),
        bench.rpc("replay_session", session_id=played.id),
    ]
    assert [replay["complete"] for replay in replays] == [True, True]
    for other in (Played(bench, each) for each in (exact, *(replay["session"] for replay in replays))):
        assert listen(other, "seller") == listen(played, "seller")
        assert listen(other, "agent") == listen(played, "agent")
        assert listen(other, "agent")["done"] is True


# Waiting


def test_waiting_participant_gets_messages_sent_to_it(bench):
    played = play(bench, THREE)
    seller, agent = start_listening(played, "seller"), start_listening(played, "agent")
    played.send("buyer", "say", text="5?", to="seller")
    assert [each["content"] for each in seller.result(serving.PATIENCE)["messages"]] == ["5?"]
    assert not agent.done()
    buyer = start_listening(played, "buyer", after=0)
    played.send("buyer", "say", text="Well?", to="seller")  # the participant's own message
    played.call("seller", "bid", amount=1)
    assert not buyer.done()
    played.send("seller", "say", text="No.")
    assert [each["content"] for each in buyer.result(serving.PATIENCE)["messages"]] == ["Well?", "No."]
    assert [each["content"] for each in agent.result(serving.PATIENCE)["messages"]] == ["No."]
    assert not len(waits(bench))


def test_wait_times_out_and_returns_the_callers_own_messages(market):
    played = play(market, THREE)
    played.send("buyer", "say", text="5?")
    answer = listen(played, "buyer", wait_seconds=0.01)
    assert [each["content"] for each in answer["messages"]] == ["5?"]
    assert listen(played, "buyer", after=0, wait_seconds=0.01) == {"messages": [], "done": False}


def test_submitted_answer_ends_all_waits(market):
    played = play(market, THREE)
    waits_of_both = [start_listening(played, name) for name in ("agent", "seller")]
    played.send("buyer", "submit_answer", answer="sold")
    assert [each.result(serving.PATIENCE) for each in waits_of_both] == [{"messages": [], "done": True}] * 2


def test_second_listen_ends_the_first(market):
    played = play(market, THREE)
    first = start_listening(played, "agent")
    second = market.later("listen", agent_key=played.key("agent"), wait_seconds=30)
    assert first.result(serving.PATIENCE) == {"messages": [], "done": False}
    played.send("buyer", "say", text="5?")
    assert len(second.result(serving.PATIENCE)["messages"]) == 1


def test_reset_ends_a_wait_for_an_undone_message_with_an_error(market):
    played = play(market, THREE)
    played.call("buyer", "bid", amount=1)
    played.send("buyer", "say", text="5?")
    later = start_listening(played, "agent", after=0)
    market.rpc("reset_session", session_id=played.id)
    assert "the session was reset" in refused(-32602, later.result, serving.PATIENCE).data["detail"]
    waits_on = start_listening(played, "agent")
    played.send("buyer", "say", text="6?")
    assert [each["content"] for each in waits_on.result(serving.PATIENCE)["messages"]] == ["6?"]


@pytest.mark.parametrize("labels", [None, {"run": "closed"}])
def test_closed_session_ends_waits_with_an_error(market, labels):
    played = play(market, THREE, labels=labels or {})
    later = start_listening(played, "agent")
    if labels:
        assert market.rpc("close_session", labels=labels) == 1
    else:
        market.rpc("close_session", session_id=played.id)
    refused(-32001, later.result, serving.PATIENCE)
    refused(-32001, listen, played, "agent")


def test_expired_session_ends_waits_with_an_error(make_bench):
    bench = make_bench(CATALOG)
    played = play(bench, THREE)
    later = start_listening(played, "agent")
    with bench.sweeping():
        # Repeated, because the first check of the wait may still renew the session.
        wait_until(lambda: bench.store.renew(played.id, 1.0) or later.done(), "the answer")
        refused(-32001, later.result, serving.PATIENCE)


def test_listening_keeps_the_session_alive(make_bench, monkeypatch):
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.01)
    bench = make_bench(CATALOG)
    played = play(bench, THREE, ttl_seconds=0.3)
    created = bench.store.get(played.id)[0]
    with bench.sweeping():
        later = start_listening(played, "agent")
        wait_until(lambda: bench.store.get(played.id)[0].expires_at > created.expires_at + 3 * 0.3, "the renewals")
        assert not later.done()
        played.send("buyer", "say", text="5?")
        assert [each["content"] for each in later.result(serving.PATIENCE)["messages"]] == ["5?"]


def test_shutdown_ends_waits(make_bench):
    bench = make_bench(CATALOG)
    played = play(bench, THREE)
    later = start_listening(played, "agent")
    bench._loop.call_soon_threadsafe(bench.sessions.begin_draining)
    assert later.result(serving.PATIENCE) == {"messages": [], "done": False}
    with waits(bench).waiter(played.id, "agent") as wait:
        assert wait.is_over, "the wait must end at once"
    assert listen(played, "agent", wait_seconds=30) == {"messages": [], "done": False}
    played.send("buyer", "say", text="5?")
    assert contents_for(played, "agent", wait_seconds=30) == ["5?"]


def test_disconnected_client_ends_its_wait(market):
    played = play(market, THREE)
    disconnected = threading.Event()

    async def is_disconnected():
        while not disconnected.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.001)

    async def send():
        caller = (await market.service.agent(played.key("agent")))._replace(left=is_disconnected)
        params = {"wait_seconds": 30}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "listen", "params": params})
        return serving.result_of(await market.service.agents.answer(caller, body.encode()))

    later = asyncio.run_coroutine_threadsafe(send(), market._loop)
    wait_until(lambda: len(waits(market)) == 1, "the wait")
    disconnected.set()
    refused(-32006, later.result, serving.PATIENCE)
    wait_until(lambda: not len(waits(market)), "the end of the wait")


@pytest.mark.heavy
def test_thousand_waits_use_no_threads(make_bench):
    bench = make_bench(CATALOG)
    everybody = {f"p{number}": {} for number in range(15)}
    first = play(bench, everybody)
    sessions = [first, *(Played(bench, each) for each in bench.rpc("fork_session", session_id=first.id, count=62))]
    contents_for(first, "agent")
    threads = threading.active_count()
    names = [*first.session.get("participants")]
    later = [
        bench.later("listen", agent_key=played.key(name), wait_seconds=30) for played in sessions for name in names
    ]
    wait_until(lambda: len(waits(bench)) == len(sessions) * 16 == 1008, "the waits")
    assert threading.active_count() <= threads + 8
    assert bench.sessions.queues.is_idle()
    for played in sessions:
        played.send("p0", "say", text="Hi.")
        played.send("p1", "say", text="Hi.", to="p0")
    for each in later:
        assert each.result(serving.PATIENCE)["messages"][0]["content"] == "Hi."


@pytest.mark.parametrize("kind", ["sqlite", "redis", pytest.param("postgres", marks=pytest.mark.heavy)])
def test_workers_that_share_a_store_deliver_each_others_messages(store_url, kind):
    url = store_url(kind)
    stores = [open_store(url, exclusive=False) for _ in range(2)]
    with Bench(CATALOG, stores[0]) as one, Bench(CATALOG, stores[1]) as other:
        buyer_side = play(one, THREE)
        seller_side = Played(other, buyer_side.session)
        later = [start_listening(seller_side, name) for name in ("agent", "seller")]
        buyer_side.send("buyer", "say", text="5?")
        for each in later:
            assert [message["content"] for message in each.result(serving.PATIENCE)["messages"]] == ["5?"]
        later = start_listening(seller_side, "agent", after=0)
        buyer_side.send("buyer", "submit_answer", answer="sold")
        assert later.result(serving.PATIENCE) == {"messages": [], "done": True}
        fork = Played(other, one.rpc("fork_session", session_id=buyer_side.id)[0])
        later = start_listening(fork, "agent", after=0)
        one.rpc("close_session", session_id=fork.id)
        refused(-32001, later.result, serving.PATIENCE)
    for store in stores:
        store.close()


def test_waiters_are_removed_one_by_one():
    async def play_waits():
        waiters = MessageWaiters()
        with waiters.waiter("s", "a") as first:
            with waiters.waiter("s", "a") as second:
                assert (first.is_over, second.is_over, len(waiters)) == (True, False, 1)
            with waiters.waiter("s", "b"), waiters.waiter("t", "a"):
                assert len(waiters) == 2
        assert len(waiters) == 0

    asyncio.run(play_waits())


# Evaluators


def test_evaluator_sees_sender_and_recipient_of_messages(market, monkeypatch):
    messages = []
    task = CATALOG.toolpacks["market"].task_list.all()["sale"]
    monkeypatch.setattr(type(task), "__setattr__", object.__setattr__)
    monkeypatch.setattr(task, "evaluate", lambda rollout: messages.extend(rollout.messages) or 1.0)
    played = play(market, {}, task="market/sale")
    played.send("buyer", "say", text="5?", to="agent")
    played.send("agent", "say", text="Yes.")
    market.rpc("add_message", session_id=played.id, role="system", content="note")
    market.rpc("evaluate_session", session_id=played.id)
    assert [(each.role, each.by, each.to, each.content) for each in messages] == [
        ("user", "buyer", "agent", "5?"),
        ("assistant", "agent", None, "Yes."),
        ("system", "client", None, "note"),
    ]


# MCP, the client, and a real server


def mcp(played, who, method, **params):
    """Send an MCP request to a participant's address, and return its result."""
    bench, mcp = played.bench, played.bench.service.feature(Mcp)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()

    async def send():
        caller = await bench.service.agent(played.key(who))
        return (await mcp.answer(caller, await mcp.read(body, ""))).body

    return json.loads(bench._run(send()))["result"]


def tool(played, name, tool_name, call_id=None, **arguments):
    meta = {} if call_id is None else {"_meta": {CALL_ID_KEY: call_id}}
    result = mcp(played, name, "tools/call", name=tool_name, arguments=arguments, **meta)
    return result.get("structuredContent", result["content"][0]["text"]), result["isError"]


def test_mcp_participants_talk_with_tools(market):
    played = play(market, {"buyer": {"functions": ["look"]}, "seller": {}})
    assert [each["name"] for each in mcp(played, "buyer", "tools/list")["tools"]] == ["look", "say", "listen"]
    for _ in range(2):
        assert tool(played, "buyer", "say", "x", text="5?", to="seller") == ("true", False)
    message = {"index": 0, "by": "buyer", "to": "seller", "content": "5?"}
    assert tool(played, "seller", "listen", wait_seconds=30) == ({"messages": [message], "done": False}, False)
    assert contents_for(played, "seller") == ["5?"]
    assert tool(played, "buyer", "say", text="5?", to="x") == (
        "InvalidParamsError: There is no other participant 'x': choose from agent, seller.",
        True,
    )
    assert tool(played, "buyer", "say", txt="5?") == ("ValidationError: text: Field required", True)
    assert tool(played, "agent", "submit_answer", answer="sold")[1] is False
    text, is_error = tool(played, "buyer", "say", text="Wait!")
    assert (text, is_error) == (
        "AnsweredError: The answer has been submitted, so no further message is accepted.",
        True,
    )
    alone = Played(market, market.rpc("create_session"))
    alone.session["participants"] = {"agent": alone.session}
    assert "say" not in [each["name"] for each in mcp(alone, "agent", "tools/list")["tools"]]


def test_function_takes_precedence_over_a_tool_of_its_name(make_bench):
    pack = Toolpack("loud")

    @pack.function(read_only=True)
    def say() -> str:
        """Say it aloud."""
        return "aloud"

    played = play(make_bench(Catalog({"loud": pack})), THREE)
    assert [each["name"] for each in mcp(played, "buyer", "tools/list")["tools"]] == ["say", "submit_answer", "listen"]
    assert tool(played, "buyer", "say") == ("aloud", False)
    assert played.send("buyer", "say", text="5?") is True


def test_client_extends_its_timeout_and_repeats_with_a_call_id():
    requests = []

    def answer(request):
        requests.append((json.loads(request.content), request.extensions["timeout"]["read"]))
        if len(requests) == 1:
            raise httpx.ReadError("lost", request=request)
        reply = {"jsonrpc": "2.0", "id": 1, "result": {"messages": [], "done": False}}
        replies = {2: {**reply, "result": True}, 4: [reply, {**reply, "id": 2}]}
        return httpx.Response(200, json=replies.get(len(requests), reply))

    with AgentClient("http://there/agents/x", transport=httpx.MockTransport(answer), timeout_seconds=10) as agent:
        agent.say("5?", to="seller")
        agent.listen(after=3, wait_seconds=20)
        with agent.batch() as batch:
            batch.listen(wait_seconds=5)
            batch.listen(wait_seconds=7)
    assert requests[0] == requests[1]
    assert requests[0][0]["params"].keys() == {"text", "to", "call_id"}
    assert requests[2][0]["params"] == {"after": 3, "wait_seconds": 20}
    assert [timeout for _, timeout in requests] == [10, 10, 30, 22]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_stopped_server_answers_waiting_clients(tmp_path, workers):
    with server_process.served(tmp_path, "--workers", workers, drain_seconds="3600") as server:
        session = server.rpc("create_session", toolpacks=["ledger"], participants=THREE)
        paths = {name: each["agent_path"] for name, each in session.get("participants").items()}
        statuses = []

        def wait():
            body = {"jsonrpc": "2.0", "id": 1, "method": "listen", "params": {}}
            with httpx.Client(timeout=25) as client:  # The server would wait longer.
                client.post(server.url + paths["agent"], json=body)
                started.set()
                body["params"] = {"wait_seconds": 30}
                statuses.append(client.post(server.url + paths["agent"], json=body).status_code)

        started, thread = threading.Event(), threading.Thread(target=wait)
        thread.start()
        assert started.wait(serving.PATIENCE)
        server.process.terminate()
        assert server.process.wait(serving.PATIENCE) == 0
        thread.join(serving.PATIENCE)
        assert statuses in ([200], [503])  # 503 if it came just after the stop began
