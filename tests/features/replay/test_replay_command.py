"""The commands `replay` and `session bundle`: on a server, in its store, and with a file in this process."""

import json
import lzma
from types import SimpleNamespace

import pytest
import server_process
from command_line import invoke, on_a_terminal, run, run_here

FIXTURES = ["--pack-dir", str(server_process.serving.PACKS), "--packs", "ledger"]
CHANGED = '''from toolpack_server import Toolpack

toolpack = Toolpack("ledger")


@toolpack.function
def add(amount: int) -> int:
    """Add.

    :param amount: What to add.
    """
    return -amount
'''


def replay_report(status, *arguments):
    ended = run("replay", *arguments)
    assert ended.returncode == status, ended
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def session_on(server):
    session_id = server.rpc("create_session", toolpacks=["ledger"])["session_id"]
    for amount in (1, 2):
        server.call(session_id, "add", amount=amount)
    return session_id


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A server with a session and its bundle, changed code, and the store of a stopped server."""
    folder, other = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("other")
    with server_process.served(other) as stopped:
        in_store = session_on(stopped)
    changed = tmp_path_factory.mktemp("packs")
    (changed / "ledger.py").write_text(CHANGED)
    with server_process.served(folder) as server:
        session_id = session_on(server)
        ended = invoke("session", "bundle", "--url", server.url, session_id)
        assert (ended.exit_code, ended.stderr) == (0, "")
        file = folder / "session.bundle"
        file.write_bytes(ended.stdout_bytes)
        yield SimpleNamespace(
            url=server.url, rpc=server.rpc, session=session_id, file=file, other=other, in_store=in_store,
            changed=["--pack-dir", changed, "--packs", "ledger"],
        )  # fmt: skip


def test_replay_of_a_session_on_a_server(world):
    report = replay_report(0, "--url", world.url, world.session)
    assert (report["replayed"], report["complete"], report.get("diverged")) == (2, True, None)
    assert report["session"].get("parent")["session_id"] == world.session
    assert replay_report(0, "--url", world.url, "--limit", 1, world.session[:20])["replayed"] == 1


def test_replay_of_a_session_in_a_store(world):
    assert replay_report(0, "--data-dir", world.other, *FIXTURES, world.in_store[:20])["replayed"] == 2
    ended = invoke("session", "bundle", "--data-dir", world.other, *FIXTURES, "--ends", world.in_store)
    assert ended.stdout_bytes.startswith(b"toolpack-bundle-1\n")
    assert ended.stdout_bytes != world.file.read_bytes()


def test_replay_of_a_bundle_file_locally_and_on_a_server(world):
    assert replay_report(0, *FIXTURES, world.file)["complete"]
    assert replay_report(0, "--url", world.url, world.file)["complete"]


def test_difference_exits_with_status_1(world):
    assert replay_report(1, *world.changed, world.file).get("diverged") == {
        "index": 0, "what": "result", "recorded": "1", "replayed": "-1",
    }  # fmt: skip


def test_terminal_output_is_a_sentence(world):
    assert on_a_terminal("replay", *FIXTURES, str(world.file)) == "2 records came out the same.\n"
    first, *_, last = on_a_terminal("replay", *map(str, world.changed), str(world.file), status=1).splitlines()
    assert first == "Record 0 comes out differently: its result was"
    assert last.endswith(" has the state after that call.")
    assert on_a_terminal("session", "bundle", "--url", world.url, world.session, status=2) == ""  # A bundle isn't text.


def test_bundle_that_unpacks_to_too_much_is_a_one_sentence_error(world, tmp_path):
    head, lines = world.file.read_bytes().split(b"\n", 1)[0], b"{" + b" " * 2**25
    (tmp_path / "bomb").write_bytes(head + b"\n" + b"0" * 64 + b"\n" + lzma.compress(lines, preset=0))
    ended = run_here("replay", *FIXTURES, str(tmp_path / "bomb"))
    (line,) = ended.stderr.splitlines()
    assert "has more than 16777216 bytes" in line


@pytest.mark.heavy
def test_file_larger_than_any_bundle_is_a_one_sentence_error(tmp_path):
    """The file would be copied several times. At 4 GB the process was killed."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**28 + 1)
    ended = run_here("replay", *FIXTURES, str(tmp_path / "large"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"toolpack-server: {tmp_path}/large isn't a bundle: it has more than 268435456 bytes.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "--data-dir", "nowhere", "x"], "There is no store nowhere/sessions.db"),
        (["replay", *FIXTURES, server_process.__file__], "This isn't a bundle"),
        (["session", "bundle", "--url", "http://127.0.0.1:1", "x" * 48], "can't be reached"),
    ],
)
def test_invalid_arguments_are_a_one_sentence_error(arguments, message):
    ended = run_here(*arguments)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert message in line
