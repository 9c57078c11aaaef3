"""`call` with steps and options, the `session` commands, and `list --url`: against a server and its store."""

import asyncio
import json
import re
import subprocess
import sys

import click
import pytest
import server_process
import serving
from command_line import invoke, on_a_terminal, run_here
from hostile_server import endless, server_that

from toolpack_server.cli import requests, session_commands

FIXTURES = ["--pack-dir", str(serving.PACKS), "--packs", "ledger,vault,bank"]


def run_json(*arguments):
    """Run a command that prints JSON, and return the printed values."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    decoder, text, values = json.JSONDecoder(), result.stdout.strip(), []
    while text:
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:].strip()
    return values


def run_error(*arguments):
    """Run a command that fails, and return its error message."""
    result = run_here(*arguments)
    assert result.returncode != 0
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


# call


def test_call_runs_several_steps_in_one_session():
    assert run_json("call", *FIXTURES, "add", "amount=4", "--", "add", "amount=5", "--", "total") == [4, 9, 9]


def test_call_uses_functions_and_options_of_several_toolpacks():
    assert run_json(
        "call", *FIXTURES, "--option", "vault.gold=7", "--option", "bank.balance=5", "take_gold", "amount=2", "--",
        "get_balance", "--", "total",
    ) == [2, "5", 0]  # fmt: skip


def test_call_stops_at_the_first_failed_step():
    result = invoke("call", *FIXTURES, "add", "amount=4", "--", "add", "amount=x", "--", "total")
    assert result.exit_code == 1
    assert result.stdout == "4\n"
    assert "ValidationError" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["add", "amount=1", "--"], "A function must follow each --, as in: call send_money … -- get_balance."),
        (["add", "amount=1", "--", "--", "total"], "A function must follow each --"),
        (["--option", "gold=7", "total"], "'gold=7' is not of the form toolpack.name=value."),
        (["--option", "vault.gold", "total"], "'vault.gold' is not of the form name=value."),
        (["--option", "vault.silver=7", "take_gold"], "The options of toolpack 'vault' are invalid"),
        (["--option", "cellar.wine=7", "total"], "There is no toolpack 'cellar'"),
        (["--url", "http://x", "--session", "s", "--option", "a.b=1", "f"], "--option needs a new session"),
        (["total", "--", "total", "amount"], "'amount' is not of the form name=value."),
    ],
)
def test_call_rejects_wrong_steps_and_options(arguments, sentence):
    result = invoke("call", *FIXTURES, *arguments)
    assert result.exit_code != 0
    assert sentence in result.output
    assert result.stdout == ""


BOXES = '''"""Boxes."""
from toolpack_server import Toolpack

def box(name, opt_in):
    toolpack = Toolpack(name, opt_in=opt_in)

    @toolpack.function
    def put(x: int) -> str:
        """Put.

        :param x: What.
        """
        return f"{x} in {name}"

    return toolpack

red, blue, grey = box("red", True), box("blue", True), box("grey", False)
'''


def test_call_lists_the_candidates_of_an_ambiguous_function(tmp_path):
    (tmp_path / "boxes.py").write_text(BOXES)
    command = ["call", "--pack-dir", str(tmp_path)]
    assert run_json(*command, "put", "x=1") == ["1 in grey"]  # the other two toolpacks are opt-in
    assert run_json(*command, "red.put", "x=1", "--", "blue.put", "x=2") == ["1 in red", "2 in blue"]
    assert run_json(*command, "red.put", "x=1") == ["1 in red"]
    result = invoke(*command, "--packs", "red,blue", "put", "x=1")
    assert "2 toolpacks have a function 'put': call red.put or blue.put." in result.output
    assert result.exit_code != 0


# session commands


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A server with three sessions: a parent that was reset, its fork, and a session of another owner."""
    folder = tmp_path_factory.mktemp("world")
    tokens = {"TOOLPACK_TOKENS": "ann:ann-token,bob:bob-token"}
    with server_process.served(folder, **tokens) as server:

        def rpc(method, token="ann-token", **params):
            server.http.headers["Authorization"] = f"Bearer {token}"
            return server.rpc(method, **params)

        parent = rpc("create_session", toolpacks=["ledger"], labels={"run": "7"})["session_id"]
        rpc("run_function", session_id=parent, function="add", kwargs={"amount": 4})
        rpc("run_function", session_id=parent, function="add_then", kwargs={"how": "raise"})
        (fork,) = rpc("fork_session", session_id=parent, labels={})
        rpc("run_function", session_id=fork["session_id"], function="add", kwargs={"amount": 5})
        rpc("reset_session", session_id=parent)
        other = rpc("create_session", token="bob-token", toolpacks=["bank"])["session_id"]
        server.parent, server.fork, server.other = parent, fork["session_id"], other
        server.folder = folder
        yield server


@pytest.fixture(params=["server", "store"])
def source(request, world, tmp_path):
    """The options by which a command reads the running server, or a copy of its data directory."""
    if request.param == "server":
        return ["--url", world.url, "--token", "ann-token"]
    for name in ("sessions.db", "sessions.db-wal", "secret.key"):
        (tmp_path / name).write_bytes((world.folder / name).read_bytes())
        (tmp_path / name).chmod(0o600)
    return ["--data-dir", str(tmp_path)]


def with_packs(source):
    return [*source, *FIXTURES] if "--data-dir" in source else source


def test_list_shows_sessions_newest_first(world, source):
    (sessions,) = run_json("session", "list", *source)
    expected = [world.other, world.fork, world.parent] if "--data-dir" in source else [world.fork, world.parent]
    assert [session["session_id"] for session in sessions] == expected
    assert [each["session_id"] for each in run_json("session", "list", *source, "--label", "run=7")[0]] == [
        world.parent
    ]
    assert [each["session_id"] for each in run_json("session", "list", *source, "--parent", world.parent)[0]] == [
        world.fork
    ]
    assert [each["session_id"] for each in run_json("session", "list", *source, "--limit", "1")[0]] == expected[:1]


def test_trace_shows_the_calls_and_resets_of_a_session(world, source):
    (records,) = run_json("session", "trace", *source, world.parent)
    assert [(record["kind"], record.get("function")) for record in records] == [
        ("call", "add"),
        ("call", "add_then"),
        ("reset", None),
    ]
    (path,) = run_json("session", "trace", *source, "--path", world.fork)
    assert [(record["function"], record["session_id"]) for record in path] == [
        ("add", world.parent),
        ("add_then", world.parent),
        ("add", world.fork),
    ]


def test_env_and_diff_show_environments_of_sessions(world, source):
    flags = with_packs(source)
    assert run_json("session", "env", *flags, world.fork)[0]["ledger"]["ledger"]["entries"] == [4, 5]
    assert run_json("session", "env", *flags, "--pointer", "/ledger/ledger/entries", "--version", "0", world.fork) == [
        [4]
    ]
    added = [{"op": "add", "path": "/ledger/ledger/entries/1", "value": 5}]
    assert run_json("session", "diff", *flags, world.fork) == [added]
    assert run_json("session", "diff", *flags, "--from-version", "1", world.parent, world.fork) == [added]
    assert run_json("session", "diff", *flags, world.parent, world.parent) == [[]]


def test_prefix_of_a_session_id_is_enough(world, source):
    assert run_json("session", "trace", *source, world.fork[:12]) == run_json("session", "trace", *source, world.fork)
    result = invoke("session", "trace", *source, "")
    assert result.exit_code == 1
    assert "Several sessions' ids begin with ''." in result.stderr
    assert "No sessions' ids begin with 'x'." in invoke("session", "trace", *source, "x").stderr


def test_output_on_a_terminal_is_text_instead_of_json(world):
    source = ["--url", world.url, "--token", "ann-token"]
    header, fork, parent = on_a_terminal("session", "list", *source).splitlines()
    assert header.split() == ["SESSION", "VERSION", "CREATED", "TOOLPACKS"]
    assert fork.startswith(f"{world.fork}  1  ")
    assert fork.endswith(f"ledger     fork of {world.parent[:8]}, version 1")
    assert parent.endswith("run=7")
    lines = on_a_terminal("session", "trace", *source, world.parent).splitlines()
    assert lines[0].startswith("   0  add(amount=4)  [version 1, ")
    assert lines[1] == "      → 4"
    assert lines[3] == "      ✗ LookupError: half of it is done"
    assert lines[4] == "   2  reset to version 0: version 2"
    assert on_a_terminal("session", "diff", *source, world.fork) == "+ /ledger/ledger/entries/1: 5\n"
    assert on_a_terminal("session", "diff", *source, world.fork, world.fork) == "No differences.\n"
    assert json.loads(on_a_terminal("session", "env", *source, world.fork))["ledger"]
    assert on_a_terminal("session", "list", *source, "--label", "run=8") == "No sessions.\n"


def test_control_characters_of_a_session_do_not_reach_a_terminal():
    moves = "\x1b[2J"
    session = {"session_id": "s", "version": 0, "created_at": "", "toolpacks": [], "labels": {"name": moves}}
    patch = [{"op": "add", "path": f"/bank/{moves}", "value": moves}, {"op": "move", "path": "/a", "from": f"/{moves}"}]
    for text in (session_commands._sessions_text([session]), session_commands._diff_text(patch)):
        assert "\x1b" not in text
        assert "[2J" in text


def test_session_commands_with_url_do_not_import_the_server(world):
    args = ["session", "list", "--url", world.url, "--token", "ann-token"]
    program = (
        f"import sys; from toolpack_server.cli import cli; cli({args!r}, standalone_mode=False); "
        "unneeded = {'starlette', 'jsonrpcserver', 'toolpack_server.wiring', 'toolpack_server.base.settings'}; "
        "assert not unneeded & sys.modules.keys()"
    )
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(modules) == json.loads(invoke(*args).output)


def test_list_shows_the_toolpacks_of_a_server(world):
    remote = invoke("list", "--url", world.url, "--token", "ann-token")
    assert remote.exit_code == 0, remote.output
    assert "ledger\n" in remote.output  # without the folder, which a server doesn't reveal
    local = invoke("list", *FIXTURES).output
    assert remote.output == re.sub(rf" \({serving.PACKS}/\w+\.py(\)|, )", lambda match: " (" * (match[1] != ")"), local)


def test_session_that_cannot_be_read_is_a_one_sentence_error(world, tmp_path):
    assert run_error("session", "list", "--data-dir", str(world.folder)) == (
        f"toolpack-server: A running server uses {world.folder}/sessions.db: ask that server, with --url."
    )
    assert run_error("session", "list", "--data-dir", str(tmp_path)) == (
        f"toolpack-server: There is no store {tmp_path}/sessions.db: give --data-dir, or ask a server, with --url."
    )
    assert not list(tmp_path.iterdir())
    assert "a memory: store" in run_error("session", "trace", "--store", "memory:", "x").lower()
    assert "No session has this id" in run_error("session", "env", "--url", world.url, "--token", "ann-token", "0" * 48)
    assert "token" in run_error("session", "list", "--url", world.url)
    assert "can't be reached" in run_error("session", "list", "--url", "http://127.0.0.1:1")


def test_session_without_its_toolpack_is_listed_but_not_shown(world, tmp_path):
    for name in ("sessions.db", "sessions.db-wal", "secret.key"):
        (tmp_path / name).write_bytes((world.folder / name).read_bytes())
        (tmp_path / name).chmod(0o600)
    source = ["--data-dir", str(tmp_path)]
    assert len(run_json("session", "trace", *source, world.fork)[0]) == 1
    assert "Toolpack 'ledger' is not loaded" in run_error("session", "env", *source, "--packs", "bank", world.fork)


# hostile servers


def test_reply_that_never_ends_is_rejected(monkeypatch):
    monkeypatch.setattr(requests, "MAX_REPLY_BYTES", 2**20)
    with server_that(endless) as url:
        result = invoke("session", "list", "--url", url)
    assert (result.exit_code, "longer than 1048576 bytes" in result.output) == (1, True)


@pytest.mark.parametrize("path", ["@127.0.0.2/x", ".evil.example/x", "http://evil.example/x"])
def test_token_is_not_sent_to_another_host(path):
    ask = requests.remote("http://127.0.0.1:1", "secret")
    with pytest.raises(click.ClickException, match="isn't a path"):
        asyncio.run(ask("get_task", {}, path))
