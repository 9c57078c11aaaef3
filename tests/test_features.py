"""Each feature can be removed from the list: its additions are gone, and everything else works."""

import json
import operator
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from command_line import invoke
from pydantic import Field
from serving import FEATURES, refused

from toolpack_server import features
from toolpack_server.base.errors import SettingsError, StartError
from toolpack_server.base.settings import FeatureSettings, Settings
from toolpack_server.cli import all_commands, cli, first_sentence
from toolpack_server.features.evaluation.participants.methods import Listen
from toolpack_server.features.evaluation.tasks.results import SessionTask
from toolpack_server.features.stores.redis.feature import RedisFeature
from toolpack_server.protocol.results import Session
from toolpack_server.rpc.method import agents_methods, clients_methods
from toolpack_server.sessions.addresses import Addresses
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.manager import SessionManager
from toolpack_server.sessions.record_kinds import RecordKind, RecordKinds
from toolpack_server.volumes.volume import Volume
from toolpack_server.web.app import create_app
from toolpack_server.web.console import console_files
from toolpack_server.wiring import installed
from toolpack_server.wiring.feature import Feature
from toolpack_server.wiring.installed import GROUP, in_order, load_features
from toolpack_server.wiring.service import all_methods, all_record_kinds
from toolpack_server.wiring.stores import open_store

"""The number of names that each of our features imports from the core, beyond those of `toolpack_server.features.api`.

Each number may only fall. A feature that needs another name should get it through the feature API, which other authors
have, too.
"""


def names(methods):
    return {method.declared.name for method in clients_methods(methods)}


@pytest.fixture(params=FEATURES, ids=[feature.name for feature in FEATURES])
def missing(request):
    return request.param


@pytest.fixture
def rest(missing):
    """Return all features except one and those that need it."""
    removed = {missing.name}
    for each in FEATURES:  # in the order of loading
        if not removed.isdisjoint(each.needs):
            removed.add(each.name)
    return [each for each in FEATURES if each.name not in removed]


@pytest.fixture
def bench(rest, make_bench):
    return make_bench(features=rest)


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
    assert bench.rpc("get_environment", format="snapshot", session_id=session_id)["version"] == 3
    assert bench.rpc("close_session", session_id=session_id) == 1
    assert bench.rpc("close_session", labels={"run": "1"}) == 1


def test_additions_of_a_missing_feature_are_gone(bench, rest):
    removed = [each for each in FEATURES if each not in rest]
    own = {name for each in removed for name in names(each.methods)}
    assert names(all_methods(FEATURES)) - names(all_methods(rest)) == own - names(all_methods(rest))
    described = bench.rpc("rpc.discover")
    assert {each["name"] for each in described["methods"]} == names(all_methods(rest))
    assert {each["name"] for each in described["x-features"]} == {each.name for each in rest}
    for feature in removed:
        is_gone(feature, bench, rest, described)


def is_gone(feature, bench, without, described):
    own = names(feature.methods)
    for method in own:
        assert "There is no method" in refused(-32601, bench.rpc, method).data["detail"]
    session = bench.rpc("create_session", toolpacks=["ledger"])
    key = session["agent_path"].rpartition("/")[2]
    others = {method.declared.name for method in agents_methods(all_methods(without))}
    for method in {method.declared.name for method in agents_methods(feature.methods)} - others:
        assert "There is no method" in refused(-32601, bench.rpc, method, agent_key=key).data["detail"]
    for kind in feature.results:
        result = {"Session": session, "AddressPaths": session}.get(kind.__name__, {})
        assert result.keys().isdisjoint(feature.results[kind].__annotations__)
    for method, parameters in feature.parameters.items():
        params = {"session_id": "none"} if "session_id" in method.model_fields else {}
        for parameter in parameters.model_fields.keys() - method.model_fields.keys():
            detail = refused(-32602, bench.rpc, method.declared.name, **params, **{parameter: "x"}).data["detail"]
            assert f"{parameter}: Extra inputs are not permitted. The parameters are: " in detail
    assert not feature.about or feature.about not in described["info"]["description"]
    files = console_files(bench.service.context.record_kinds, bench.service.features, "thread")
    assert not [path for path in files if path.startswith(f"features/{feature.name}/")]
    assert json.loads(files["views.json"].content).keys().isdisjoint(feature.views)
    paths = {route.path for route in create_app(bench.service).routes}
    assert paths.isdisjoint(feature.routes.keys() - {path for each in without for path in each.routes})


WIRED = re.compile(
    r"toolpack_server\.(observability|packs|rpc|sessions|wiring)\."
)  # in this server no thread changes objects


def holdings(server):
    """Return the values in the server's objects and their collections, by object and attribute."""
    values_by_attribute, pending, visited = {}, [server], {}
    while pending:
        holder = pending.pop()
        if id(holder) in visited or not WIRED.match(type(holder).__module__):
            continue
        visited[id(holder)] = holder  # the entry keeps the object alive, so that its id isn't reused
        for name, value in getattr(holder, "__dict__", {}).items():
            values = [value]
            if isinstance(value, dict):
                values = [*value.keys(), *value.values()]
            elif isinstance(value, list | tuple | set | frozenset):
                values = [*value]
            values_by_attribute[type(holder), id(holder), name] = values
            pending += values
    return values_by_attribute


def test_creating_a_features_parts_changes_no_server(make_bench):
    service = make_bench().service
    before = holdings(service)
    assert {SessionContext, Addresses, SessionManager} <= {holder for holder, _, _ in before}
    for feature in FEATURES:
        hooks = (*feature.creation_hooks, *feature.operation_hooks, *feature.filters)
        parts = (*feature.services, *feature.address_hooks, *feature.address_tools, feature.tracer)
        parts_made = [*(make(service.context) for make in hooks), *(make(service) for make in parts if make)]
        parts_made += [kind() for kind in (*feature.watchers, feature.named_addresses) if kind]
        after = holdings(service)  # while all created objects still exist
        assert after.keys() == before.keys(), (feature.name, parts_made)
        assert [attribute for attribute, values in after.items() if not same(values, before[attribute])] == [], (
            feature.name
        )


def same(values, others):
    return len(values) == len(others) and all(map(operator.is_, values, others))


def test_commands_are_listed_without_being_imported():
    context = click.Context(cli)
    for name, path in all_commands().items():
        *group, last = name.split()
        command = (cli.get_command(context, *group) if group else cli).get_command(context, last)
        assert " ".join(command.help.partition("\n\n")[0].split()) == first_sentence(path)
    program = (
        "import sys; from toolpack_server.cli import cli; cli(['--help'], standalone_mode=False); "
        "assert not {'pydantic', 'jsonrpcserver', 'toolpack_server.wiring', 'toolpack_server.rpc'} & sys.modules.keys()"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  ([\w-]+)  ", output.partition("Commands:")[2], re.MULTILINE) == sorted(
        {name.split()[0] for name in all_commands()}
    )


def test_settings_of_a_missing_feature_are_not_shown(monkeypatch):
    own = {name: {*feature.settings.variables()} for feature in FEATURES if (name := feature.name) and feature.settings}
    for left_out in ("", *own):
        monkeypatch.setenv("TOOLPACK_FEATURES", left_out and f"-{left_out}")
        words = {*invoke("serve", "--help").output.split()}
        assert Settings.variables().keys() < words
        assert {name for name, variables in own.items() if variables & words} == own.keys() - {left_out}
        assert all(variables <= words for name, variables in own.items() if name != left_out)


def new_feature(name, **attributes):
    return type(name.title(), (Feature,), {"name": name, **attributes})


def settings(feature, name):
    members = {"__annotations__": {name: str}, name: Field("", description="A setting."), "__module__": __name__}
    return type(FeatureSettings)("Own", (FeatureSettings,), members, feature=feature)


@pytest.mark.parametrize(
    ("features", "refusal"),
    [
        (
            [new_feature("weather", hooks=())],
            r"^The feature Weather has an attribute 'hooks', which `Feature` doesn't declare. Its attributes are a",
        ),
        (
            [new_feature("weather", needs=["sky"])],
            "^The feature 'weather' needs the feature 'sky', which is missing: install it, or exclude 'weather'",
        ),
        (
            [new_feature("a", after=["b"]), new_feature("b", needs=["a"])],
            "^The features have no loading order, because each must come after another: ",
        ),
        (
            [new_feature("a", routes={"/look": "x:y"}), new_feature("b", routes={"/look": "x:z"})],
            "^The features 'a' and 'b' both add '/look' to routes: exclude one of them, for example with T",
        ),
        (
            [new_feature("a", methods=[Listen]), new_feature("b", methods=[Listen])],
            "^The features 'a' and 'b' both add 'listen' to methods: exclude one of them, for example",
        ),
        (
            [new_feature("a_b", settings=settings("a_b", "c")), new_feature("a", settings=settings("a", "b_c"))],
            "^The features 'a' and 'a_b' both add 'TOOLPACK_A_B_C' to settings: exclude one of them",
        ),
        (
            [new_feature("a", results={Session: SessionTask}), new_feature("b", results={Session: SessionTask})],
            "^The features 'a' and 'b' both add 'Session.task' to results: exclude one of them",
        ),
        (
            [new_feature("a", tracer=lambda _app: None), new_feature("b", tracer=lambda _app: None)],
            "^The features 'a' and 'b' both have tracer, but a server can have only one: exclude one of them, for ",
        ),
        ([new_feature("My Weather")], "^The name of the feature 'My Weather' is invalid: use lower-case letters"),
        (
            [new_feature("a", record_kinds=[type("SkyKind", (RecordKind,), {})])],
            "^SkyKind of the feature 'a' needs a `name`: a word.$",
        ),
        ([new_feature("a", volumes=[type("Sky", (Volume,), {})])], "^Sky of the feature 'a' needs a `kind`: a word.$"),
    ],
)
def test_features_that_cannot_be_used_are_refused(features, refusal):
    with pytest.raises(StartError, match=refusal):
        in_order(features)


@pytest.mark.parametrize(
    ("views", "refusal"),
    [
        (
            {"sessions": "server:console/new.js"},
            "^The feature 'a' has a view 'sessions', and so has the console: leave",
        ),
        (
            {"mine": "server:console/none.js"},
            "^The view 'mine' of the feature 'a', server:console/none.js, can't be read",
        ),
        ({"mine": "no_such_package:x.js"}, "^The view 'mine' of the feature 'a', no_such_package:x.js, can't be read"),
    ],
)
def test_views_that_cannot_be_served_are_refused(views, refusal):
    with pytest.raises(StartError, match=refusal):
        console_files(RecordKinds(), [new_feature("a", views=views)], "thread")


def test_a_record_kind_is_replaced_only_by_a_subclass():
    other = type("OtherKind", (RecordKind,), {"name": "call"})
    with pytest.raises(StartError, match=r"^Two kinds of records are named 'call': derive OtherKind from CallKind to"):
        all_record_kinds([new_feature("a", record_kinds=[other])])


def test_features_may_share_a_route_with_its_endpoint():
    features = [new_feature("a", routes={"/look": "x:y"}), new_feature("b", routes={"/look": "x:y"})]
    assert [each.name for each in in_order(features)] == ["a", "b"]


def test_features_come_after_their_requirements():
    features = [new_feature("a", needs=["c"]), new_feature("b"), new_feature("c", after=["b", "absent"])]
    assert [each.name for each in in_order(features)] == [each.name for each in in_order(features[::-1])] == [*"bca"]


def point(name, value):
    return EntryPoint(name, value, GROUP)


WORKING = point("working", "toolpack_server.features.protocols.mcp.feature:McpFeature")


@pytest.mark.parametrize(
    ("points", "refusal"),
    [
        ([], "^No features are installed, not even the server's own: reinstall toolpack-server.$"),
        ([point("a", "no_such_module:A")], r"^The feature 'a' of no_such_module:A can't be imported \(ModuleNotFound"),
        (
            [point("a", "json:JSONDecoder")],
            "^The feature 'a' of json:JSONDecoder isn't a subclass of `Feature`: correct",
        ),
        (
            [WORKING],
            "^The entry point 'working' of [a-z_.]+.mcp.feature:McpFeature has a feature named 'mcp': give both",
        ),
        ([point("a", "x:A"), point("a", "y:A")], "^x:A and y:A both have a feature 'a': uninstall one of them.$"),
    ],
)
def test_an_installed_feature_that_cannot_be_loaded_is_named(points, refusal, monkeypatch):
    monkeypatch.setattr(installed, "entry_points", lambda **_: points)
    with pytest.raises(StartError, match=refusal):
        load_features([])


def test_a_feature_that_cannot_be_imported_can_be_left_out(monkeypatch):
    points = [point("a", "no_such_module:A"), point("mcp", "toolpack_server.features.protocols.mcp.feature:McpFeature")]
    monkeypatch.setattr(installed, "entry_points", lambda **_: points)
    assert [each.name for each in load_features(["-a", "+mcp"])] == ["mcp"]


@pytest.mark.parametrize(
    ("chosen", "refusal"),
    [
        (
            "audit",
            "^TOOLPACK_FEATURES: 'audit' must have the form -NAME, which excludes a feature, or .NAME, which requires",
        ),
        ("-", "^TOOLPACK_FEATURES: '-' must have the form"),
        (
            "-none",
            "^TOOLPACK_FEATURES: no feature 'none' is installed; `toolpack-server features` lists the installed ones.$",
        ),
        ("+none", "^TOOLPACK_FEATURES: no feature 'none' is installed"),
    ],
)
def test_a_choice_of_features_that_cannot_be_followed_is_refused(chosen, refusal, monkeypatch):
    monkeypatch.setenv("TOOLPACK_FEATURES", chosen)
    with pytest.raises(SettingsError, match=refusal):
        load_features()


def test_the_default_store_without_its_feature_is_refused():
    refusal = (
        r"^The default store needs the feature 'sqlite', which is missing: install it and don't exclude it, or choose "
        r"another --store: memory:, redis://…, rediss://…\.$"
    )
    with pytest.raises(SettingsError, match=refusal):
        open_store(Settings(data_dir=Path()).store_url, features=[RedisFeature])


def test_features_import_names_from_their_own_modules():
    folder = Path(features.__file__).parent
    files = [path for path in folder.rglob("*.py") if not path.is_relative_to(folder / "api")]
    assert [path for path in files if "toolpack_server.features.api" in path.read_text(encoding="utf-8")] == []
