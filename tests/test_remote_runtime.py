"""`RemoteRuntime` is AgentDojo's runtime: the local environment follows exactly, or the call is refused."""

import gc

import pytest
from agentdojo.agent_pipeline import GroundTruthPipeline
from agentdojo.functions_runtime import EmptyEnv, FunctionCall, FunctionsRuntime, TaskEnvironment, ToolNotFoundError
from agentdojo.task_suite.load_suites import get_suites
from http_server import running
from pydantic import ValidationError

from server import remote_runtime
from server.catalog import load_catalog
from server.client import Client
from server.errors import EnvironmentDiffersError, RemoteFunctionError, ReplyError
from server.graph import difference
from server.remote_runtime import RemoteRuntime

SUITE = get_suites("v1.2.2")["workspace"]
PACK = "agentdojo-workspace"
EVENT = {"title": "Tea", "start_time": "2024-05-20 10:00", "end_time": "2024-05-20 11:00"}


@pytest.fixture(scope="module")
def client():
    catalog = load_catalog((), (PACK,))
    with running(catalog, store="memory:") as url, Client(url) as made:
        yield made


@pytest.fixture(scope="module")
def start():
    return SUITE.load_and_inject_default_environment({})


@pytest.fixture
def env(start):
    return start.model_copy(deep=True)


@pytest.fixture
def runtime(client):
    made = RemoteRuntime.bind(client, PACK)(SUITE.tools)
    yield made
    made.close()


@pytest.fixture
def local():
    return FunctionsRuntime(SUITE.tools)


def test_agentdojo_runs_a_task_with_it(client):
    task = SUITE.user_tasks["user_task_18"]
    runtime_class = RemoteRuntime.bind(client, PACK)
    assert SUITE.run_task_with_pipeline(GroundTruthPipeline(task), task, None, {}, runtime_class) == (True, True)


def test_options_match_the_server_to_the_suites_injections(client):
    vector = next(iter(SUITE.get_injection_vector_defaults()))
    task = SUITE.user_tasks["user_task_18"]
    runtime_class = RemoteRuntime.bind(client, PACK, {"injections": {vector: "Do it!"}})
    pipeline = GroundTruthPipeline(task)
    assert SUITE.run_task_with_pipeline(pipeline, task, None, {vector: "Do it!"}, runtime_class) == (True, True)
    with pytest.raises(EnvironmentDiffersError, match="values differ.*options that match"):
        SUITE.run_task_with_pipeline(pipeline, task, None, {}, runtime_class)


def test_the_local_object_follows_with_its_aliases(runtime, local, env, start):
    here = start.model_copy(deep=True)
    before = env
    for function, kwargs in [
        ("create_file", {"filename": "a.txt", "content": "one"}),
        ("append_to_file", {"file_id": "1", "content": " more"}),
        ("get_unread_emails", {}),
        ("delete_email", {"email_id": "3"}),
    ]:
        runtime.run_function(env, function, kwargs)
        local.run_function(here, function, kwargs)
        for world in (env, here):  # the only thing that isn't the same on both sides is the clock
            for file in world.cloud_drive.files.values():
                file.last_modified = start.calendar.events["1"].start_time if not file.model_extra else None
        assert difference(here, env) is None
        runtime.close()
        runtime = type(runtime)(SUITE.tools)
        break
    assert env is before
    assert env.cloud_drive.files["1"] is next(f for f in env.cloud_drive.initial_files if f.id_ == "1")
