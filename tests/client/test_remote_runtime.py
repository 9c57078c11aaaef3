"""`RemoteRuntime` as AgentDojo's runtime: it updates the local environment exactly, or refuses the call."""

import gc

import pytest
import with_agentdojo
from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
from agentdojo.functions_runtime import EmptyEnv, FunctionCall, FunctionsRuntime, TaskEnvironment, ToolNotFoundError
from agentdojo.task_suite.load_suites import get_suites
from http_server import running
from pydantic import ValidationError

from toolpack_server import remote_runtime
from toolpack_server.base.errors import EnvironmentDiffersError, RemoteFunctionError, ReplyError
from toolpack_server.client import Client
from toolpack_server.packs.loading import load_catalog
from toolpack_server.remote_runtime import RemoteRuntime
from toolpack_server.snapshots.comparison import difference

pytestmark = with_agentdojo.HEAVY

SUITE = get_suites("v1.2.2")["workspace"]
PACK = "agentdojo-workspace"


@pytest.fixture(scope="module")
def client():
    catalog = load_catalog((), (PACK,))
    with running(catalog, store="memory:") as url, Client(url) as client:
        yield client


@pytest.fixture(scope="module")
def start():
    return SUITE.load_and_inject_default_environment({})


@pytest.fixture
def env(start):
    return start.model_copy(deep=True)


@pytest.fixture
def runtime(client):
    runtime = RemoteRuntime.bind(client, PACK)(SUITE.tools)
    yield runtime
    runtime.close()


@pytest.fixture
def local():
    return FunctionsRuntime(SUITE.tools)


def test_agentdojo_runs_a_task_with_a_remote_runtime(client):
    task = SUITE.user_tasks["user_task_18"]
    runtime_class = RemoteRuntime.bind(client, PACK)
    assert SUITE.run_task_with_pipeline(GroundTruthPipeline(task), task, None, {}, runtime_class) == (True, True)


def test_options_match_the_server_to_the_suites_injections(client):
    vector = next(iter(SUITE.get_injection_vector_defaults()))
    task = SUITE.user_tasks["user_task_18"]
    runtime_class = RemoteRuntime.bind(client, PACK, {"injections": {vector: "Do it!"}})
    pipeline = GroundTruthPipeline(task)
    assert SUITE.run_task_with_pipeline(pipeline, task, None, {vector: "Do it!"}, runtime_class) == (True, True)
    with pytest.raises(EnvironmentDiffersError, match=r"values differ.*options that build it"):
        SUITE.run_task_with_pipeline(pipeline, task, None, {}, runtime_class)


def test_the_local_object_is_updated_exactly(runtime, local, env, start):
    local_copy, remote = start.model_copy(deep=True), env
    inbox = env.inbox
    for function, kwargs in [
        ("get_unread_emails", {}),
        ("delete_email", {"email_id": "3"}),
        ("share_file", {"file_id": "1", "email": "Not@NORMALISED.example", "permission": "rw"}),
        ("add_calendar_event_participants", {"event_id": "2", "participants": ["nobody's address"]}),
        ("delete_file", {"file_id": FunctionCall(function="get_current_day", args={})}),
        ("delete_file", {"file_id": "2"}),
    ]:
        assert runtime.run_function(remote, function, kwargs) == local.run_function(local_copy, function, kwargs)
        assert difference(local_copy, remote) is None
    assert remote.inbox is not inbox
    assert remote.calendar.events["2"] in remote.calendar.initial_events
    assert any(remote.calendar.events["2"] is event for event in remote.calendar.initial_events)


def test_a_failed_call_changes_neither_side(runtime, env, start):
    assert runtime.run_function(env, "delete_email", {"email_id": "none"}) == (
        "",
        "ValueError: Email with ID 'none' not found.",
    )
    assert difference(start, env) is None
    assert runtime.run_function(env, "get_sent_emails", {})[1] is None


def test_an_environment_changed_elsewhere_is_refused(runtime, env):
    runtime.run_function(env, "delete_email", {"email_id": "3"})
    env.inbox.trash.clear()
    with pytest.raises(EnvironmentDiffersError, match=r"inbox\.trash.*let only the runtime change it"):
        runtime.run_function(env, "delete_email", {"email_id": "4"})


def test_a_copy_may_replace_the_environment(runtime, env):
    runtime.run_function(env, "delete_email", {"email_id": "3"})
    twin = env.model_copy(deep=True)
    assert runtime.run_function(twin, "delete_email", {"email_id": "4"})[1] is None
    with pytest.raises(EnvironmentDiffersError):
        runtime.run_function(env, "delete_email", {"email_id": "5"})


def test_after_a_lost_export_the_next_call_compares_again(runtime, env, monkeypatch):
    runtime.run_function(env, "delete_email", {"email_id": "3"})

    def fail(*_args, **_kwargs):
        raise ReplyError(-32006, "Too much waits.", {})

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "_exported", fail)
        with pytest.raises(ReplyError):
            runtime.run_function(env, "delete_email", {"email_id": "4"})
    with pytest.raises(EnvironmentDiffersError):
        runtime.run_function(env, "delete_email", {"email_id": "5"})


def test_another_kind_of_environment_is_refused(runtime):
    with pytest.raises(EnvironmentDiffersError, match="EmptyEnv here differ from those of toolpack"):
        runtime.run_function(EmptyEnv(), "get_unread_emails", {})


def test_only_the_given_functions_are_available(client, env):
    runtime = RemoteRuntime.bind(client, PACK)(SUITE.tools)
    runtime.update_functions({name: runtime.functions[name] for name in ("get_current_day", "delete_file")})
    missing = "ToolNotFoundError: The requested function `send_email` is not available."
    assert runtime.run_function(env, "send_email", {}) == ("", missing)
    nested = {"file_id": FunctionCall(function="send_email", args={})}
    assert runtime.run_function(env, "delete_file", nested) == ("", missing)
    with pytest.raises(ToolNotFoundError, match="`send_email` is not available"):
        runtime.run_function(env, "send_email", {}, raise_on_error=True)
    assert runtime.session_id is None


def test_a_missing_environment_is_refused_as_in_agentdojo(runtime):
    with pytest.raises(ValueError, match="has dependencies but no environment was provided"):
        runtime.run_function(None, "get_unread_emails", {})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ValueError: no such thing", ValueError),
        ("KeyError: 'x'", KeyError),
        ("KeyError: 7", KeyError),
        ("TimeoutError: too long", TimeoutError),
        ("SomebodysError: is unknown here", RemoteFunctionError),
        ("SystemExit: 1", RemoteFunctionError),
        ("UnicodeDecodeError: takes five arguments", RemoteFunctionError),
        ("TooLargeError: the result", remote_runtime.errors.TooLargeError),
    ],
)
def test_errors_become_exceptions_of_their_class(runtime, error, kind):
    exception = runtime._exception("get_unread_emails", {}, error)
    assert isinstance(exception, kind)
    assert f"{type(exception).__name__}: {exception}" == error


def test_wrong_arguments_raise_pydantics_own_error(runtime, env):
    with pytest.raises(ValidationError, match="email_id"):
        runtime.run_function(env, "delete_email", {}, raise_on_error=True)


def test_sessions_are_closed(client, env):
    runtime_class = RemoteRuntime.bind(client, PACK, labels={"test": "closing"})

    def sessions():
        return [session["session_id"] for session in client.list_sessions(labels={"test": "closing"})]

    first = runtime_class(SUITE.tools)
    first.run_function(env.model_copy(deep=True), "get_current_day", {})
    remaining = sessions()
    assert remaining == [first.session_id]
    del first
    gc.collect()
    second = runtime_class(SUITE.tools)
    second.run_function(env, "get_current_day", {})
    assert sessions() == [second.session_id]
    second.close()
    assert sessions() == []
    second.run_function(env, "get_current_day", {})
    runtime_class.sessions.close_all()
    assert sessions() == []


def test_a_closing_client_closes_its_sessions(client, env):
    with Client(client._url.removesuffix("/rpc")) as other:
        runtime = RemoteRuntime.bind(other, PACK)(SUITE.tools)
        runtime.run_function(env, "get_current_day", {})
        assert client.get_session(runtime.session_id)["version"] == 1
    with pytest.raises(ReplyError, match="No session has this id"):
        client.get_session(runtime.session_id)


def test_closing_ignores_a_server_that_is_gone():
    with Client("http://127.0.0.1:1", retries=0) as client_of_no_server:
        sessions = RemoteRuntime.bind(client_of_no_server, PACK).sessions
        sessions._open = {"one", "two"}
    assert len(sessions._open) == 1  # after the first failed attempt, no other session was tried


def test_a_runtime_must_be_bound():
    with pytest.raises(TypeError, match=r"RemoteRuntime\.bind"):
        RemoteRuntime(SUITE.tools)


def test_a_server_with_other_classes_is_refused(client, runtime):
    class Other(TaskEnvironment):
        inbox: int = 1

    with pytest.raises(EnvironmentDiffersError, match="The classes of Other here"):
        runtime.run_function(Other(), "get_unread_emails", {})
    assert client.get_session(runtime.session_id)["version"] == 0
