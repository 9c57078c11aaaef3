"""Declarations of methods: a missing part is an error when the class is created."""

import json
from typing import Literal

import pytest
from pydantic import Field
from serving import FEATURES, refused, result_of

from toolpack_server.base.errors import StartError
from toolpack_server.protocol.parameters import SessionId
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.method import Method
from toolpack_server.rpc.openrpc import openrpc_document
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.service import all_methods
from tools.client_code import client_code


class TouchSession(Method, result=Literal[True], agents="Renew the session.", positional=("why",), repeatable=False):
    """Renew a session."""

    why: str = Field("x", description="Why.")
    session_id: SessionId

    async def handle(self, caller, app):
        await app.sessions.read(lambda reader: reader.find(self.session_id, caller.owner))
        return True


class Touching(Feature):
    name = "touching"
    methods = (TouchSession,)


class TouchingAgain(Touching):
    name = "touching_again"


WITH_TOUCHING = (*FEATURES, Touching)


def test_a_method_without_result_or_summary_is_refused():
    with pytest.raises(TypeError, match="The method Touch has no result: write Touch"):
        type("Touch", (Method,), {"__doc__": "Touch."})
    with pytest.raises(TypeError, match="The method Touch needs a docstring: clients see it as"):

        class Touch(Method, result=int):
            pass


def test_a_declared_method_is_answered_at_both_addresses(make_bench):
    bench = make_bench(features=WITH_TOUCHING)
    session = bench.rpc("create_session", toolpacks=["ledger"])
    assert bench.rpc("touch_session", session_id=session["session_id"]) is True
    assert refused(-32001, bench.rpc, "touch_session", session_id="none")
    key = session["agent_path"].rpartition("/")[2]
    assert bench.rpc("touch_session", agent_key=key, why="it was asked to") is True
    assert "session_id: Extra inputs" in str(refused(-32602, bench.rpc, "touch_session", agent_key=key, session_id="s"))


def test_two_methods_of_one_name_are_refused_at_the_start(make_bench):
    with pytest.raises(StartError, match="both add 'touch_session' to methods: exclude one of them"):
        make_bench(features=(*WITH_TOUCHING, TouchingAgain))


def test_a_declared_method_is_in_openrpc_and_the_client():
    methods = all_methods(WITH_TOUCHING)
    document = openrpc_document(methods)
    described = document["methods"][-1]
    assert (described["name"], described["summary"]) == ("touch_session", "Renew a session.")
    assert [each["name"] for each in described["params"]] == ["session_id", "why"]
    text = document["info"]["description"]
    assert "submit_answer, say, listen and touch_session, without session_id; get_task answers" in text
    assert "; get_task answers there with the prompt" in text
    code = client_code(methods)
    method_source = '@requests("touch_session", repeatable=False)\n    def touch_session('
    assert f'{method_source}self, session_id: str, why: str = "x") -> bool:\n        """Renew a session.' in code
    assert f'{method_source}self, why: str = "x") -> bool:\n        """Renew the session.' in code


def test_access_to_all_owners_sessions_is_read_only(make_bench):
    bench = make_bench()
    mine = bench.rpc("create_session", owner="ann", toolpacks=["ledger"])["session_id"]

    def everybody(method, **params):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"session_id": mine, **params}})
        return result_of(bench._run(bench.service.rpc.answer(Caller.all_owners(), body.encode())))

    for method in ("get_session", "get_environment", "diff_environment", "summarize_changes", "get_trace"):
        assert everybody(method) == bench.rpc(method, owner="ann", session_id=mine) or method == "get_session"
    refused(-32001, everybody, "run_function", function="add", kwargs={"amount": 1})
    for method in ("reset_session", "fork_session", "close_session", "submit_answer"):
        refused(-32001, everybody, method)
