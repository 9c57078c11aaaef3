"""Each feature can be taken out of the list: what it adds is gone, and everything else works."""

import re
import subprocess
import sys

import click
import pytest
from serving import refused

from server.cli import COMMANDS, cli
from server.feature import Feature
from server.rpc.method import agents_methods, clients_methods
from server.service import FEATURES, all_methods, load_features
from server.web.app import create_app


def names(methods):
    return {method.declared.name for method in clients_methods(methods)}


@pytest.fixture(params=FEATURES, ids=[path.rpartition(":")[2] for path in FEATURES])
def missing(request):
    return request.param


@pytest.fixture
def bench(missing, make_bench):
    return make_bench(features=[path for path in FEATURES if path != missing])


def test_sessions_work_without_a_feature(bench):
    session = bench.rpc("create_session", toolpacks=["ledger", "vault"], labels={"run": "1"}, call_id="mine")
    assert bench.rpc("create_session", toolpacks=["ledger", "vault"], labels={"run": "1"}, call_id="mine") == session
    session_id, key = session["session_id"], session["agent_path"].rpartition("/")[2]
    assert bench.call(session_id, "add", amount=2) == {"result": 2, "error": None}
    assert bench.rpc("run_function", agent_key=key, function="add", kwargs={"amount": 3})["result"] == 5
    assert bench.call(session_id, "add", amount="x")["error"].startswith("ValidationError: ")
    functions = [each["name"] for each in bench.rpc("list_functions", agent_key=key)["result"]]
    assert functions == [each["name"] for each in bench.rpc("list_functions", session_id=session_id)["result"]]
    assert bench.version(session_id) == 2
    (fork,) = bench.rpc("fork_session", session_id=session_id)
    assert bench.result(fork["session_id"], "add", amount=1) == 6
    assert len(bench.rpc("get_trace", session_id=fork["session_id"], path=True)) == 4
    assert bench.rpc("reset_session", session_id=session_id, version=1)["version"] == 3
    assert bench.rpc("diff_environment", session_id=session_id, from_version=1) == []
    assert {each["session_id"] for each in bench.rpc("list_sessions")} == {session_id, fork["session_id"]}
    assert bench.rpc("export_session", session_id=session_id)["version"] == 3
    assert bench.rpc("close_session", session_id=session_id) is True
    assert bench.rpc("close_sessions", labels={"run": "1"}) == 1


def test_what_a_feature_adds_is_gone_without_it(bench, missing):
    (feature,) = load_features([missing])
    without = [path for path in FEATURES if path != missing]
    own = names(feature.methods)
    assert names(all_methods()) - names(all_methods(without)) == own - names(all_methods(without))
    for method in own:
        assert "There is no method" in refused(-32601, bench.rpc, method).data["detail"]
    key = bench.rpc("create_session", toolpacks=["ledger"])["agent_path"].rpartition("/")[2]
    rest = {method.declared.name for method in agents_methods(all_methods(without))}
    for method in {method.declared.name for method in agents_methods(feature.methods)} - rest:
        assert "There is no method" in refused(-32601, bench.rpc, method, agent_key=key).data["detail"]
    for method, parameters in feature.parameters.items():
        given = {"session_id": "none"} if "session_id" in method.model_fields else {}
        for parameter in parameters.model_fields.keys() - method.model_fields.keys():
            detail = refused(-32602, bench.rpc, method.declared.name, **given, **{parameter: "x"}).data["detail"]
            assert f"{parameter}: Extra inputs are not permitted. The parameters are: " in detail
    described = bench.rpc("rpc.discover")
    assert {each["name"] for each in described["methods"]} == names(all_methods(without))
    assert not feature.about or feature.about not in described["info"]["description"]
    assert bench.service.doors.keys().isdisjoint(feature.doors)
    create_app(bench.service)


def test_commands_are_listed_with_what_they_do_without_being_imported():
    context = click.Context(cli)
    for name, (_, does) in COMMANDS.items():
        assert " ".join(cli.get_command(context, name).help.partition("\n\n")[0].split()) == does
    program = (
        "import sys; from server.cli import cli; cli(['--help'], standalone_mode=False); "
        "assert not {'pydantic', 'jsonrpcserver', 'server.service', 'server.feature'} & sys.modules.keys()"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  (\w+)  ", shown.partition("Commands:")[2], re.MULTILINE) == sorted(COMMANDS)


class Misspelt(Feature):
    hooks = ()


def test_a_feature_that_says_what_no_feature_can_add_is_refused():
    with pytest.raises(TypeError, match=r"^The feature Misspelt has an attribute 'hooks', which .* around, "):
        load_features([*FEATURES, f"{__name__}:Misspelt"])
