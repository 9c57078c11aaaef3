"""Features in separate wheels: their additions have the same guarantees as the server's own.

`weather` is the example of docs/internals/features.md. `tide`, in fixtures/, adds one thing of each kind that the page
doesn't show.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import command_line
import pytest
import server_process
from hatchling.builders.wheel import WheelBuilder
from raw_websocket import RawWebSocket
from serving import PACKS

pytestmark = pytest.mark.heavy
PAGE = (Path(__file__).parent.parent / "docs" / "internals" / "features.md").read_text(encoding="utf-8")
ISOLATIONS = pytest.mark.parametrize("isolation", ["thread", "process"])


def block(language):
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return code


def weather(project, version="0.1.0", **changed):
    """Write the page's project into a folder, with some texts replaced, and return the folder."""
    source = block("python")
    for before, after in changed.items():
        source = source.replace(before, after)
    project.mkdir(exist_ok=True)
    (project / "weather.py").write_text(source, encoding="utf-8")
    (project / "pyproject.toml").write_text(block("toml").replace("0.1.0", version), encoding="utf-8")
    return project


def installed(folder, *projects):
    """Install the wheels of these projects into a folder by pip. Return the variables for a process that uses them."""
    wheels = [wheel for each in projects for wheel in WheelBuilder(str(each)).build(directory=str(each / "dist"))]
    flags = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--upgrade", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, *wheels], check=True)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(":")}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    project = tmp_path_factory.mktemp("project")
    tide = shutil.copytree(PACKS.parent / "tide", project / "tide")
    return installed(tmp_path_factory.mktemp("site"), weather(project / "weather"), tide)


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
        return json.load(response)


def test_feature_is_listed_as_the_page_shows(site):
    ((command, expected),) = [part.partition("\n")[::2] for part in block("console").split("$ ")[1:]]
    assert command.endswith("toolpack-server features | grep -A 4 weather")
    output = command_line.run("features", **site).stdout
    assert expected in output
    assert "weather" not in command_line.run("features").stdout
    assert "weather" not in command_line.run("features", TOOLPACK_FEATURES="-weather", **site).stdout


@ISOLATIONS
def test_feature_method_has_the_guarantees_of_a_call(site, tmp_path, isolation):
    flags = ["--packs", "bank"]
    with server_process.served(tmp_path, *flags, TOOLPACK_ISOLATION=isolation, **site) as server:
        session_id = server.rpc("create_session")["session_id"]
        note = {"session_id": session_id, "sky": "blue", "call_id": "mine"}
        assert server.rpc("note_weather", **note) is server.rpc("note_weather", **note) is True
        server.call(session_id, "get_balance")
        (fork,) = server.rpc("fork_session", session_id=session_id)
        trace = server.rpc("get_trace", session_id=fork["session_id"], path=True)
        assert [(each["kind"], each.get("sky")) for each in trace] == [("weather", "blue"), ("call", None)]
        assert trace[0]["call_id"] == "mine"
        bundle = server.rpc("export_bundle", session_id=session_id)["bundle"]
        copy = server.rpc("import_bundle", bundle=bundle)["session_id"]
        assert server.rpc("get_trace", session_id=copy)[0]["sky"] == "blue"
        described = server.rpc("rpc.discover")
        assert {"note_weather"} <= {each["name"] for each in described["methods"]}
        assert [each.get("routes") for each in described["x-features"] if each["name"] == "weather"] == [["/weather"]]


def test_two_workers_share_records_of_a_feature(site, tmp_path, store_url):
    variables = {"TOOLPACK_SECRET_KEY": "a key for this test alone", **site}
    flags = ["--packs", "bank", "--workers", "2", "--store", store_url("redis")]
    with server_process.served(tmp_path, *flags, **variables) as server:
        session_id = server.rpc("create_session")["session_id"]
        for number in range(12):
            server.rpc("note_weather", session_id=session_id, sky=str(number), call_id=str(number))
        trace = server.rpc("get_trace", session_id=session_id)
        assert [each["sky"] for each in trace] == [str(number) for number in range(12)]


def test_feature_path_has_the_settings_and_checks_of_all_paths(site, tmp_path):
    variables = {"TOOLPACK_TOKENS": "ann:12345678,bob:87654321", "TOOLPACK_WEATHER_TOWN": "Lyon", **site}
    with server_process.served(tmp_path, "--packs", "bank", **variables) as server:
        url = f"{server.url}/weather"
        assert get(url, Authorization="Bearer 12345678") == {"town": "Lyon", "sky": "grey", "sessions": 0}
        for headers in ({}, {"Authorization": "Bearer 123456789"}):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(url, **headers)
            assert refused.value.code == 401
            assert "token" in json.load(refused.value)["error"]["message"]


def test_a_misspelt_setting_is_reported_at_the_start(site, tmp_path):
    with server_process.served(tmp_path, "--packs", "bank", TOOLPACK_WEATHER_TWON="Lyon", **site) as server:
        assert "TOOLPACK_WEATHER_TWON isn't a setting: did you mean TOOLPACK_WEATHER_TOWN?" in server.banner


def test_records_are_readable_without_their_feature(site, tmp_path):
    with server_process.served(tmp_path, "--packs", "bank", **site) as server:
        session_id = server.rpc("create_session")["session_id"]
        server.rpc("note_weather", session_id=session_id, sky="blue", call_id="mine")
    with server_process.served(tmp_path, "--packs", "bank") as server:
        trace = server.rpc("get_trace", session_id=session_id)
        assert [(each["kind"], each["sky"]) for each in trace] == [("weather", "blue")]
        assert server.call(session_id, "get_balance")["error"] is None
        assert "weather" in command_line.run("session", "trace", session_id, "--url", server.url).stdout
        with pytest.raises(Exception, match="There is no method 'note_weather'"):
            server.rpc("note_weather", session_id=session_id, sky="grey")


def test_an_upgrade_reads_old_records_or_says_why_not(tmp_path):
    folder, project = tmp_path / "site", tmp_path / "weather"
    flags, note = ["--packs", "bank"], {"sky": "blue", "call_id": "mine"}
    with server_process.served(tmp_path, *flags, **installed(folder, weather(project, "1.0.0"))) as server:
        session_id = server.rpc("create_session")["session_id"]
        server.rpc("note_weather", session_id=session_id, **note)
        bundle = server.rpc("export_bundle", session_id=session_id)["bundle"]
    wind = "sky: str\n    wind: NotRequired[str]"
    newer = {
        "import TypedDict": "import NotRequired, TypedDict",
        "(TypedDict):\n    sky: str": f"(TypedDict):\n    {wind}",
    }
    with server_process.served(tmp_path, *flags, **installed(folder, weather(project, "1.1.0", **newer))) as server:
        assert server.rpc("note_weather", session_id=session_id, **note) is True  # answered from its record
        server.rpc("note_weather", session_id=session_id, sky="grey", call_id="next")
        assert [each["sky"] for each in server.rpc("get_trace", session_id=session_id)] == ["blue", "grey"]
        copy = server.rpc("import_bundle", bundle=bundle)["session_id"]
        assert [each["sky"] for each in server.rpc("get_trace", session_id=copy)] == ["blue"]
    other = {"(TypedDict):\n    sky: str": "(TypedDict):\n    clouds: int", "weather: {sky}": "weather: {clouds}"}
    with server_process.served(tmp_path, *flags, **installed(folder, weather(project, "2.0.0", **other))) as server:
        assert [each["sky"] for each in server.rpc("get_trace", session_id=session_id)] == ["blue", "grey"]
        assert "blue" in command_line.run("session", "trace", session_id, "--url", server.url).stdout
        assert server.call(session_id, "get_balance")["error"] is None
        with pytest.raises(
            Exception, match=r"A record of the bundle, of kind 'weather', lacks what is needed to .* at clouds"
        ):
            server.rpc("import_bundle", bundle=bundle)


def test_all_additions_of_the_feature_are_listed(site):
    lines = command_line.run("features", **site).stdout.partition("\ntide (")[2].partition("\n(")[0]
    assert "parameters: create_session(tide), list_sessions(tide)" in lines
    assert "results: Session.tide" in lines
    assert "routes: /tide" in lines
    assert "stores: tide" in lines


@ISOLATIONS
def test_feature_session_data_survives_forks_bundles_restarts(site, tmp_path, isolation):
    flags, variables = ["--packs", "bank"], {"TOOLPACK_ISOLATION": isolation, **site}
    with server_process.served(tmp_path, *flags, **variables) as server:
        with pytest.raises(Exception, match="tide: 'high' is none: use flood or ebb"):
            server.rpc("create_session", tide="high")
        ids = {tide: server.rpc("create_session", tide=tide)["session_id"] for tide in ("flood", "ebb")}
        plain = server.rpc("create_session")["session_id"]
        (fork,) = server.rpc("fork_session", session_id=ids["ebb"])
        bundle = server.rpc("export_bundle", session_id=ids["ebb"])["bundle"]
        server.kill()
    with server_process.served(tmp_path, *flags, **variables) as server:
        copy = server.rpc("import_bundle", bundle=bundle)["session_id"]
        at_ebb = {ids["ebb"], fork["session_id"], copy}
        assert {each["session_id"] for each in server.rpc("list_sessions", tide="ebb")} == at_ebb
        assert [each["session_id"] for each in server.rpc("list_sessions", tide="flood")] == [ids["flood"]]
        assert len(server.rpc("list_sessions")) == 5
        tides = {session_id: server.rpc("get_session", session_id=session_id).get("tide") for session_id in at_ebb}
        assert {*tides.values()} == {"ebb"}
        assert "tide" not in server.rpc("get_session", session_id=plain)
        (described,) = [each for each in server.rpc("rpc.discover")["methods"] if each["name"] == "get_session"]
        assert described["result"]["schema"]["properties"]["tide"]["type"] == "string"
        for session_id in at_ebb:
            with pytest.raises(Exception, match="Nothing can be done at ebb tide"):
                server.call(session_id, "get_balance")
            assert server.rpc("get_trace", session_id=session_id) == []
        for session_id in (ids["flood"], plain):
            assert server.call(session_id, "get_balance")["error"] is None
    with server_process.served(tmp_path, *flags) as server:
        summaries = server.rpc("list_sessions")
        assert len(summaries) == 5
        assert not any("tide" in each for each in summaries)
        assert server.call(plain, "get_balance")["error"] is None
        with pytest.raises(Exception, match="tide: Extra inputs are not permitted"):
            server.rpc("create_session", tide="ebb")
        for session_id in (*at_ebb, ids["flood"]):
            with pytest.raises(Exception, match="tide"):
                server.call(session_id, "get_balance")
            assert server.rpc("close_session", session_id=session_id) == 1


def test_feature_websocket_has_the_access_rules_of_requests(site, tmp_path, store_url):
    variables = {"TOOLPACK_SECRET_KEY": "a key for this test alone", "TOOLPACK_TOKENS": "ann:12345678", **site}
    flags = ["--packs", "bank", "--workers", "2", "--store", store_url("redis")]
    with server_process.served(tmp_path, *flags, **variables) as server:
        port = int(server.url.rpartition(":")[2])
        with RawWebSocket(port, "/tide") as refused:
            assert (refused.status, "token" in refused.body.decode()) == (401, True)
        for _ in range(3):
            with RawWebSocket(port, "/tide", token="12345678") as one:
                for number in (1, 2):
                    reply = one.ask({"toolpacks": ["bank"], "tide": "flood"})
                    assert reply == {"tide": "flood", "heard": number}
        server.http.headers["Authorization"] = "Bearer 12345678"
        assert len(server.rpc("list_sessions")) == 6


PIER = """
from typing import Annotated
from toolpack_server import Depends, TaskEnvironment, Toolpack
from tide.tally import Tally

class Pier(TaskEnvironment):
    log: Tally = Tally(["built"])

toolpack = Toolpack("pier", Pier)

@toolpack.function
def moor(log: Annotated[Tally, Depends("log")], boat: str) -> int:
    'Moor a boat.\\n\\n:param boat: Its name.'
    log.add(boat)
    if boat == "wreck":
        raise ValueError("it sinks")
    return len(log.lines)

@toolpack.function(read_only=True)
def moored(log: Annotated[Tally, Depends("log")]) -> list[str]:
    'Say which boats there are.'
    return log.lines[1:]
"""


@pytest.mark.parametrize("isolation", ["thread", "process", "harbour"])
def test_feature_volumes_operations_and_isolation_combine(site, tmp_path, isolation):
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "pier.py").write_text(PIER, encoding="utf-8")
    flags = ["--packs", "bank,pier", "--pack-dir", str(tmp_path / "packs")]
    variables = {"TOOLPACK_ISOLATION": isolation, **site}
    with server_process.served(tmp_path, *flags, **variables) as server:
        session_id = server.rpc("create_session", toolpacks=["bank", "pier"])["session_id"]
        assert server.call(session_id, "moor", boat="Anna") == {"result": 2, "error": None}
        assert server.call(session_id, "moor", boat="wreck")["error"] == "ValueError: it sinks"
        assert server.call(session_id, "moor", boat="Berta")["result"] == 3
        (fork,) = server.rpc("fork_session", session_id=session_id, version=1)
        server.kill()
    with server_process.served(tmp_path, *flags, **variables) as server:
        assert server.call(session_id, "moored")["result"] == ["Anna", "Berta"]
        assert server.call(fork["session_id"], "moored")["result"] == ["Anna"]
        world = server.rpc("get_environment", session_id=session_id)
        assert world["pier"]["log"] == ["built", "Anna", "Berta"]
        assert server.rpc("measure_tide", session_id=session_id) == len(json.dumps(world, separators=(",", ":")))
        (added,) = server.rpc("diff_environment", session_id=session_id, from_version=1)
        assert added == {"op": "add", "path": "/pier/log/-", "value": "Berta"}
        bundle = server.rpc("export_bundle", session_id=session_id)["bundle"]
        copy = server.rpc("import_bundle", bundle=bundle)["session_id"]
        assert server.call(copy, "moor", boat="Cora")["result"] == 4
        assert ("toolpack_tide_runs_total" in server.http.get("/metrics").text) == (isolation == "harbour")
    without = {**variables, "TOOLPACK_FEATURES": "-tide", "TOOLPACK_ISOLATION": "thread"}
    with server_process.served(tmp_path, *flags, **without) as server:
        for method, params in (("get_environment", {}), ("run_function", {"function": "moored"})):
            with pytest.raises(Exception, match="No feature of this server provides volumes of the kind 'tally'"):
                server.rpc(method, session_id=session_id, **params)
        with pytest.raises(Exception, match="provides volumes of the kind 'tally'"):
            server.rpc("create_session", toolpacks=["pier"])
        assert len(server.rpc("get_trace", session_id=session_id)) == 4


def test_two_workers_share_the_store_of_a_feature(site, tmp_path, store_url):
    url = store_url("redis").replace("redis:", "tide:", 1)
    flags = ["--packs", "bank", "--workers", "2", "--store", url]
    variables = {"TOOLPACK_SECRET_KEY": "a key for this test alone", **site}
    with server_process.served(tmp_path, *flags, **variables) as server:
        session_id = server.rpc("create_session", tide="flood")["session_id"]
        for _ in range(12):
            server.call(session_id, "move_to_savings", amount="1.00")
        assert server.rpc("get_session", session_id=session_id)["version"] == 12
    ended = command_line.run("serve", "--store", url)
    assert ended.returncode == 1
    assert ended.stderr.startswith("toolpack-server: No store has URLs that begin with 'tide…': ")


@pytest.fixture(scope="module")
def server(site, tmp_path_factory):
    flags = ["--packs", "bank", "--store", "memory:"]
    with server_process.served(tmp_path_factory.mktemp("console"), *flags, **site) as running:
        yield running


def test_feature_page_is_part_of_the_console(page, server):
    session_id = server.rpc("create_session", tide="ebb")["session_id"]
    page.open("#/toolpacks")
    page.click("Tides", "nav a")
    page.sees("flood", "ebb", session_id[:8])
    assert page.run("return document.title") == "Tides · Toolpack Server"
    page.click(session_id[:8], "main a")
    page.at(f"#/sessions/{session_id}")
    page.click("Runs", "nav a")
    page.sees("Runs")


def test_feature_command_writes_safely_and_check_calls_it(site):
    assert command_line.run("tide", **site).stdout == "At noon, by the \\u001b[1mharbour's\\u001b[0m clock.\n"
    assert "Print the time at which the tide turns." in command_line.run("--help", **site).stdout
    checked = command_line.run("check", "--packs", "bank", **site)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert re.search(r"^note: bank\.\w+: 1 loaded$", checked.stdout, re.MULTILINE)
    assert "note: " not in command_line.run("check", "--packs", "bank", "--no-calls", **site).stdout
