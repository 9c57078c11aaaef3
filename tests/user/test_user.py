"""`toolpack-server user`, the program that plays simulated users.

It takes each step once, because it resumes from the session's records. It stays within its limits, whatever the model
answers.
"""

import asyncio
import builtins
import gzip
import json
import threading
from types import SimpleNamespace

import phone
import pytest
from chat_endpoint import (
    KEY,
    completion,
    cut_off,
    endpoint,
    error_response,
    text_message,
    tool_call_message,
    trickling_response,
)
from ci import without
from command_line import run_here
from http_server import running
from serving import PATIENCE
from starlette.responses import Response

from toolpack_server.client import AgentClient, Client
from toolpack_server.user import model as models
from toolpack_server.user.model import Answer, ChatModel, ModelCall, _seconds
from toolpack_server.user.player import Player
from toolpack_server.user.position import Limits, View
from toolpack_server.user.run import installed_kinds

LABEL = "run=x"
BOMB = gzip.compress(b" " * 2**26)


@pytest.fixture(scope="module")
def url():
    with running(phone.CATALOG, store="memory:", log_calls="off") as address:
        yield address


@pytest.fixture
def client(url):
    with Client(url) as client:
        yield client
        client.close_session(labels={"run": "x"})


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script."""

    def write(steps=phone.SCRIPT):
        (tmp_path / "script.json").write_text(json.dumps(steps))
        return ["--script", tmp_path / "script.json"]

    return write


def model(at, *flags):
    try:
        import openai  # noqa: F401, PLC0415
    except ImportError:
        without("no openai here: pip install -e '.[user]'")
    return ["--model", "m", "--base-url", at.url, "--retries", "2", *flags]


def user(url, *arguments, label=LABEL):
    return run_here("user", "--url", url, "--label", label, *arguments, OPENAI_API_KEY=KEY)


def begin(client, **params):
    return client.create_session(task="phone/roam", labels={"run": "x"}, **params)


def at(url, session, name="user"):
    return AgentClient(url + session["participants"][name]["agent_path"])


def play_all(url, sessions, *arguments):
    """Play all sessions to their end: the agents in this process, and the users by the command."""
    agents = threading.Thread(target=lambda: asyncio.run(phone.be_all_agents(url, sessions)))
    agents.start()
    ended = user(url, *arguments)
    agents.join()
    return ended


def events_of(client, session):
    """Return the calls, messages and answers, with the `call_id`s of the user."""
    trace = client.get_trace(session["session_id"], path=True, limit=1000)
    return [each.get("function", each.get("content", each.get("answer"))) for each in trace if each["kind"] != "turn"]


ALL = [phone.GREETING, phone.PROBLEM, "enable_line", phone.ASKS, *phone.CALLS[1:], phone.WORKS, phone.THEN, phone.LAST]


# Playing


def test_both_sides_are_played_by_a_script(client, url, script):
    sessions = [begin(client) for _ in range(3)]
    ended = play_all(url, sessions, *script())
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3 sessions played: 3 answered.\n", "")
    for session in sessions:
        assert events_of(client, session) == ALL
        assert client.evaluate_session(session["session_id"])["passed"]


def test_a_model_gets_its_trajectory_and_its_tokens_count(client, url):
    session = begin(client)
    with endpoint(phone.the_model) as model_at:
        ended = play_all(url, [session], *model(model_at))
    assert (ended.returncode, ended.stdout) == (0, "1 sessions played: 1 answered.\n")
    assert events_of(client, session) == ALL
    last = model_at.asked[-1]
    assert last["messages"][0] == {"role": "system", "content": phone.PROMPT}
    assert [each["role"] for each in last["messages"][1:]] == [
        *("user", "assistant", "user", "assistant", "tool", "assistant", "tool", "assistant", "user")
    ]
    assert {tool["function"]["name"] for tool in last["tools"]} == {"toggle_roaming", "look"}
    turns = [each for each in client.get_trace(session["session_id"]) if each["kind"] == "turn"]
    assert len(turns) == 5
    assert turns[0]["metadata"] == {"model_name": "m", "prompt_tokens": 70, "completion_tokens": 7}


def test_a_silent_participant_sends_a_last_message_and_leaves(client, url, script):
    begin(client, participants={"user": {"answers": False}, "agent": {"answers": True}})
    ended = user(url, *script(["Hi. ###STOP###"]), "--first")
    assert (ended.returncode, ended.stdout) == (0, "1 sessions played: 1 left.\n")
    assert user(url, *script(["Hi. ###STOP###"])).stdout == "1 sessions played: 1 left.\n"


def test_the_prompt_decides_who_speaks_first(client, url, script):
    prompt = [{"role": "system", "content": "x"}, {"role": "user", "content": "Begin."}]
    session = begin(client, participants={"user": {"prompt": prompt}})
    assert user(url, *script(["Bye. ###STOP###"])).returncode == 0
    assert events_of(client, session) == ["Bye. ###STOP###"]


def test_one_answer_makes_no_more_calls_than_turns_are_left(client, url):
    session = begin(client)
    many = tool_call_message("look")
    many["tool_calls"] *= 999
    with endpoint(lambda _: many) as at:
        assert user(url, *model(at, "--max-turns", "5"), "--first").returncode == 1
    assert events_of(client, session)[:-1] == ["look"] * 5
    assert client.get_trace(session["session_id"])[-1]["reason"] == "turns"


def test_a_call_that_leaves_no_record_is_not_repeated_for_ever():
    created, failed = [], []

    class Agent:
        async def get_task(self):
            return {"name": "user", "others": ["agent"], "prompt": [], "calls": 0, "done": False}

        async def list_functions(self, **_):
            return {"result": []}

        async def run_function(self, *arguments, **_):
            created.append(arguments)
            return {"result": "", "error": "CrashedError: `look` has ended its process 3 times"}

    class Client:
        def agent(self, _session):
            return Agent()

        async def get_trace(self, *_, **__):
            names = ("kind", "participant", "reason", "message")
            return [dict(zip(names, ("failure", "user", *failed), strict=True))] if failed else []

        async def fail_participant(self, _id, _name, reason, message, **_):
            failed.extend([reason, message])

    class Steps:
        async def answer(self, *_):
            return Answer(calls=[ModelCall("look", {})])

    view = View({}, installed_kinds(), Limits(100, None), lambda _: False, True)
    session = {"session_id": "x", "participants": {"user": {}}}
    assert asyncio.run(Player(Client(), session, "user", Steps(), view).play()) == "failed (unrecorded)"
    assert len(created) == 5
    assert "CrashedError" in failed[1]


def test_other_stop_reasons_end_the_session(client, url, script):
    session = begin(client)
    assert user(url, *script(["###STOP### END"]), "--first", "--stop", "END").returncode == 0
    assert events_of(client, session) == ["###STOP### END"]


def test_new_sessions_are_found_and_others_left_alone(client, url, script):
    other = client.create_session(["phone"], labels={"run": "x"})
    new_session = begin(client)
    console = client.create_session(task="phone/roam", labels={"run": "x", "console": "look"})
    later = threading.Timer(0.1, lambda: begin(client))
    later.start()
    ended = user(url, *script(["Bye. ###STOP###"]), "--first", "--sessions", "2")
    later.join()
    assert ended.stdout == "2 sessions played: 2 answered.\n"
    assert events_of(client, new_session) == ["Bye. ###STOP###"]
    assert events_of(client, other) == events_of(client, console) == []


# Failures


def fail(client, url, reason, *arguments, says=""):
    """Run a user that fails. Check that its failure is recorded, ends the session, and makes the verdict invalid."""
    session = begin(client)
    session_id = session["session_id"]
    ended = user(url, *arguments, "--first")
    assert ended.stdout == f"1 sessions played: 1 failed ({reason}).\n", ended.stderr
    assert (ended.returncode, ended.stderr) == (1, f"{session_id}: failed ({reason})\n")
    record = client.get_trace(session_id)[-1]
    assert (record["kind"], record["participant"], record["reason"]) == ("failure", "user", reason)
    assert says in record["message"]
    assert KEY not in str(client.get_trace(session_id)) + ended.stdout + ended.stderr
    verdict = client.evaluate_session(session_id)
    assert (verdict["valid"], verdict["failure"]["kind"], verdict["failure"]["type"]) == (False, "participant", reason)
    assert verdict["failure"]["message"] == f"user: {record['message']}"
    with at(url, session, "agent") as agent:
        assert agent.listen(wait_seconds=30)["done"]
        over = "EpisodeOverError: a participant has failed, so no further call is run."
        assert agent.run_function("enable_line")["error"] == over
    assert user(url, *arguments, "--first").stdout == ended.stdout  # a restarted program doesn't play the session again
    assert client.get_trace(session_id)[-1] == record
    return session


@pytest.mark.parametrize(
    ("answers", "reason", "says"),
    [
        (lambda _: error_response(500), "unreachable", "HTTP 500"),
        (lambda _: cut_off(), "unreachable", "No answer"),
        (lambda _: error_response(429, retry_after="0.1"), "rate_limit", "HTTP 429"),
        (lambda _: error_response(400), "refused", "no, ***"),
        (
            lambda _: Response(BOMB, headers={"content-encoding": "gzip"}),
            "refused",
            "compressed",
        ),
        (lambda _: Response(b"x", 500, headers={"content-encoding": "br, gzip"}), "refused", "compressed"),
        (lambda _: Response(b" " * 2**23, media_type="application/json"), "refused", "more than 4194304 bytes"),
        (lambda _: Response("x" * 2**23, 500), "refused", "more than 4194304 bytes"),
        (lambda _: Response(status_code=307, headers={"location": "/v1/chat/completions"}), "refused", "HTTP 307"),
        (lambda _: Response("{}", headers={"x": "y" * 2**20}), "unreachable", "No answer"),
        (lambda _: trickling_response(), "timeout", "0.3 s"),
        (lambda _: asyncio.sleep(60), "timeout", "0.3 s"),
        (lambda _: Response("<html>", media_type="text/html"), "nonsense", "a chat completion"),
        (lambda _: Response(b"\xff\xfe{", media_type="application/json"), "nonsense", "a chat completion"),
        (lambda _: Response('{"choices": []}', media_type="application/json"), "nonsense", "a chat completion"),
        (lambda _: Response("[" * 100_000, media_type="application/json"), "nonsense", "a chat completion"),
        (lambda _: text_message(None), "nonsense", "5 answers in a row can't be used. It was empty."),
        (lambda _: text_message(7), "nonsense", "a chat completion"),
        (lambda _: completion(text_message("He"), finish_reason="length"), "nonsense", "cut off"),
        (lambda _: tool_call_message("look", "{"), "nonsense", "The arguments of 'look' weren't a JSON object."),
        (lambda _: tool_call_message("look", "[]"), "nonsense", "a JSON object"),
        (lambda _: tool_call_message("look", [7]), "nonsense", "a chat completion"),
        (lambda _: tool_call_message("fly"), "wrong_calls", "5 calls in a row"),
        (lambda _: tool_call_message("enable_line"), "wrong_calls", "5 calls in a row"),
        (lambda _: tool_call_message("look", '{"times": "x"}'), "wrong_calls", "5 calls in a row"),
        (lambda _: text_message("x" * 300_000), "nonsense", "TOOLPACK_MAX_RESULT_BYTES"),
        (lambda _: text_message("x" * 3_000_000), "nonsense", "bytes"),
        (lambda _: text_message("Hi \ud800"), "nonsense", "no low surrogate"),
        (lambda _: text_message("###STOP### \ud800"), "nonsense", "no low surrogate"),
        (lambda _: tool_call_message("\ud800", "{}"), "nonsense", "no low surrogate"),
        (
            lambda _: tool_call_message("look", '{"x": ' + "[" * 200 + "]" * 200 + "}"),
            "wrong_calls",
            "5 calls in a row",
        ),
        (lambda _: tool_call_message("look", json.dumps({"x": "x" * 3_000_000})), "nonsense", "bytes"),
    ],
)
def test_a_model_that_fails_ends_the_session_with_a_named_reason(client, url, answers, reason, says):
    with endpoint(answers) as at:
        fail(client, url, reason, *model(at, "--timeout", "0.3" if reason == "timeout" else "30"), says=says)


def test_a_missing_endpoint_ends_the_program(client, url):
    with endpoint(phone.the_model) as at:
        pass
    fail(client, url, "unreachable", *model(at), says="No answer")


def test_limits_end_the_session(client, url, script):
    with endpoint(lambda _: tool_call_message("look")) as at:
        fail(client, url, "turns", *model(at, "--max-turns", "3"), says="All 3 turns are used.")
        assert len(at.asked) == 3
        client.close_session(labels={"run": "x"})
        fail(client, url, "tokens", *model(at, "--max-tokens", "200"), says="231 tokens are used; 200 are allowed.")
        client.close_session(labels={"run": "x"})
    fail(client, url, "script", *script([{"function": "look"}]), says="The script has no step 1.")


def test_a_participant_without_calls_left_is_told_so(client, url):
    session = begin(client, participants={"user": {"max_calls": 1}})
    with endpoint(
        lambda messages: text_message("###STOP###") if "[Your last" in str(messages) else tool_call_message("look")
    ) as at:
        assert user(url, *model(at), "--first").returncode == 0
    assert events_of(client, session) == ["look", "###STOP###"]
    assert ["tools" in body for body in at.asked] == [True, False, False]


def test_a_model_that_fails_for_a_while_is_retried(client, url):
    faults = [
        error_response(429, retry_after="0.01"),
        cut_off(),
        text_message(""),
        trickling_response(),
        error_response(409),
    ]
    session = begin(client)

    def answer(messages):
        if faults and len(at.asked) % 2:
            return faults.pop()
        return phone.the_model([each for each in messages if "[Your last" not in str(each["content"])])

    with endpoint(answer) as at:
        ended = play_all(url, [session], *model(at, "--timeout", "3"))
    assert (ended.returncode, faults) == (0, [])
    assert events_of(client, session) == ALL
    assert client.evaluate_session(session["session_id"])["passed"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_ends_the_program_and_no_session(client, url, status):
    session = begin(client)
    with endpoint(lambda _: error_response(status)) as at:
        ended = user(url, *model(at), "--first")
    assert ended.returncode == 1
    assert ended.stdout == "0 sessions played: none has ended.\n"
    assert ended.stderr.startswith("toolpack-server: The endpoint refused the API key or the model 'm'. HTTP ")
    assert KEY not in ended.stderr
    assert client.get_trace(session["session_id"]) == []


# Resuming


class Killed(BaseException):
    pass


def test_the_program_resumes_where_it_was(client, url, monkeypatch):
    """The program is stopped before and after each of its steps. The records must be the same as without stops."""
    session = begin(client)
    agents = threading.Thread(target=lambda: asyncio.run(phone.be_all_agents(url, [session])))
    agents.start()
    with endpoint(phone.the_model) as at:
        from toolpack_server.user import player  # noqa: PLC0415

        act = player.Player._act
        deaths = {f"{when} {number}" for when in ("before", "after") for number in range(5)}

        async def dying(self, position, answer):
            if f"before {position.turn}" in deaths:
                deaths.remove(f"before {position.turn}")
                raise Killed
            await act(self, position, answer)
            if f"after {position.turn}" in deaths:
                deaths.remove(f"after {position.turn}")
                raise Killed

        monkeypatch.setattr(player.Player, "_act", dying)
        starts = 0
        while True:
            starts += 1
            try:
                ended = user(url, *model(at))
            except Killed:
                continue
            break
    agents.join()
    assert (ended.stdout, deaths) == ("1 sessions played: 1 answered.\n", set())
    assert starts == 11
    assert events_of(client, session) == ALL
    assert client.evaluate_session(session["session_id"])["passed"]


def test_two_programs_do_no_work_twice(client, url, script):
    sessions = [begin(client) for _ in range(5)]
    command = script()
    ends = []
    agents = threading.Thread(target=lambda: asyncio.run(phone.be_all_agents(url, sessions)))
    second = threading.Thread(target=lambda: ends.append(run(url, command)))
    agents.start()
    second.start()
    ends.append(run(url, command))
    for thread in (agents, second):
        thread.join()
    assert ends == ["5 sessions played: 5 answered."] * 2
    for session in sessions:
        assert events_of(client, session) == ALL


def run(url, script):
    """Play without the command, which needs the main thread."""
    from toolpack_server.user.command import STOPS  # noqa: PLC0415
    from toolpack_server.user.model import Script  # noqa: PLC0415
    from toolpack_server.user.position import Limits, View  # noqa: PLC0415
    from toolpack_server.user.run import Run, installed_kinds  # noqa: PLC0415

    view = View({}, installed_kinds(), Limits(100, None), lambda text: any(stop in text for stop in STOPS), first=False)
    run_of_script = Run({"run": "x"}, "user", Script(script[1]), view, None, report=lambda _: None)
    asyncio.run(run_of_script.play(url, None))
    return run_of_script.summary()


def test_a_fork_goes_on_and_a_reset_goes_back(client, url, script):
    session = begin(client)
    play_all(url, [session], *script())
    session_id = session["session_id"]
    fork = client.fork_session(session_id)[0]
    again = user(url, *script())
    assert again.stdout == "2 sessions played: 2 answered.\n"
    assert events_of(client, fork) == ALL
    client.reset_session(session_id, version=1)
    assert events_of(client, session) == ALL[:4]

    def end():
        with at(url, session, "agent") as agent:
            reply = agent.listen(after=2, wait_seconds=30)
            agent.say(phone.THEN if reply["messages"] else "?")

    agent = threading.Thread(target=end)
    agent.start()
    assert user(url, *script()).stdout == "2 sessions played: 2 answered.\n"
    agent.join()
    assert events_of(client, session) == ALL
    assert client.evaluate_session(session_id)["passed"]


def test_a_fork_of_a_failed_session_is_played_again(client, url, script):
    session = fail(client, url, "script", *script([]))
    fork = client.fork_session(session["session_id"])[0]
    assert (
        user(url, *script(["Bye. ###STOP###"]), "--first").stdout
        == "2 sessions played: 1 failed (script), 1 answered.\n"
    )
    assert client.evaluate_session(fork["session_id"])["valid"]
    assert events_of(client, fork) == ["Bye. ###STOP###"]


def test_a_replay_and_a_bundle_have_the_conversation(client, url):
    session = begin(client)
    with endpoint(lambda _: tool_call_message("fly")) as at:
        user(url, *model(at), "--first")
    replay = client.replay_session(session["session_id"])
    assert replay["complete"]
    bundle = client.export_bundle(session["session_id"])["bundle"]
    imported = client.import_bundle(bundle, labels={"run": "x"})
    kinds = ["turn", "call"] * 5 + ["failure"]
    for session_id in (replay["session"]["session_id"], imported["session_id"]):
        trace = client.get_trace(session_id)
        assert [each["kind"] for each in trace] == kinds
        assert client.evaluate_session(session_id)["failure"]["type"] == "wrong_calls"


# Wrong starts


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't be read: "),
        ("{", "can't be read: "),
        ('"x"', "must be a JSON list of steps."),
        ('["x", 7]', "Step 1 of the script "),
        ('[{"function": "x", "args": {}}]', "Step 0 of the script "),
        ('[{"function": "x", "kwargs": []}]', "must be a text, or an object with `function` and `kwargs`."),
    ],
)
def test_an_invalid_script_is_refused(tmp_path, content, says):
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    ended = run_here("user", "--label", LABEL, "--script", tmp_path / "s.json")
    assert ended.returncode == 1
    assert says in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_missing_option_is_named_in_a_sentence(script, monkeypatch, url):
    def error_of(*arguments, **variables):
        ended = run_here("user", "--label", LABEL, *arguments, **variables)
        assert ended.returncode > 0
        return ended.stderr

    assert error_of() == error_of("--model", "m", *script()) == "toolpack-server: Give either --model or --script.\n"
    assert "is not of the form name=value" in error_of("--label", "x", *script())
    assert "URL begins with http://" in error_of("--url", "ftp://x", *script())
    model_at = ["--model", "m", "--url", url]
    if "OPENAI_API_KEY" not in __import__("os").environ:
        assert error_of(*model_at).startswith("toolpack-server: Set OPENAI_API_KEY")
    real_import = builtins.__import__

    def without_openai(name, *arguments):
        if name == "openai":
            raise ImportError(name)
        return real_import(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_openai)
    needed = "toolpack-server: A model needs the openai package: pip install 'toolpack-server[user]'.\n"
    assert error_of(*model_at, OPENAI_API_KEY=KEY) == needed


def test_a_missing_server_ends_the_program(script, monkeypatch):
    from toolpack_server.client import exchange  # noqa: PLC0415

    monkeypatch.setattr(exchange, "_FIRST_DELAY_SECONDS", 0.0)
    ended = run_here("user", "--url", "http://127.0.0.1:9", "--label", LABEL, *script())
    assert ended.returncode == 1
    assert "list_sessions got no answer from http://127.0.0.1:9" in ended.stderr


def test_calls_count_and_private_messages_stay_private():
    call = {"kind": "call", "by": "user", "function": "look", "kwargs": {}, "result": 1, "error": None}
    whispered = {"kind": "message", "role": "user", "content": "Psst.", "by": "agent", "to": "judge"}
    participant = {"name": "user", "others": ["agent", "judge"], "prompt": "Ask.", "max_calls": 3}
    view = View(participant, installed_kinds(), Limits(9, None), lambda _text: False, False)
    position = view.position([call, {**call, "nested": [call]}, whispered], [])
    assert (position.may_call, position.heard) == (False, -1)


@pytest.mark.parametrize(("header", "seconds"), [("3600", 60), ("2", 2), ("-1", 0), ("nan", 0), ("soon", 0), (None, 0)])
def test_retries_wait_a_minute_at_most(header, seconds):
    assert _seconds(header) == seconds


def test_an_endpoint_may_be_silent_for_days(monkeypatch):
    pytest.importorskip("openai")
    paused = []

    async def pause(seconds):
        paused.append(seconds)

    async def silent(**_asked):
        raise TimeoutError

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = ChatModel("m", None, PATIENCE, 2000)
    model._client.chat.completions.with_raw_response.create = silent
    monkeypatch.setattr(models, "asyncio", SimpleNamespace(sleep=pause, timeout=asyncio.timeout))
    with pytest.raises(models.ModelError, match="didn't answer"):
        asyncio.run(model.answer([], [], 0))
    assert len(paused) == 2000
    assert max(paused) <= 60
