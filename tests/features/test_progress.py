"""Progress of long commands: a bar on standard error on a terminal, and no bar elsewhere."""

import asyncio
import contextlib

import pytest
import server_process
from command_line import run, with_errors_on_a_terminal

from toolpack_server.cli import progress
from toolpack_server.features.replay import command

TASK = "bank/save-300"
BANK = ("--pack-dir", server_process.serving.PACKS, "--packs", "bank")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with server_process.served(tmp_path_factory.mktemp("server"), "--packs", "bank") as server:
        for _ in range(2):
            session_id = server.rpc("create_session", task=TASK)["session_id"]
            for _ in range(2):
                server.call(session_id, "move_to_savings", amount="1.00")
        file = tmp_path_factory.mktemp("bundle") / "session.bundle"
        with file.open("wb") as bundle:
            command = server_process.command("session", "bundle", "--url", server.url, session_id)
            bundle.write(server_process.subprocess.check_output(command, env=server_process.environment()))
        yield server, session_id, file


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["evaluate", "check", "replay", "replay-file"])
def test_long_commands_show_a_bar_only_on_a_terminal(world, name):
    server, session_id, file = world
    labelled, arguments = {
        "evaluate": ("Evaluating", ["evaluate", "--url", server.url]),
        "check": ("Checking tasks", ["check", *BANK, "--no-calls", "--task", TASK]),
        "replay": ("Replaying", ["replay", "--url", server.url, session_id]),
        "replay-file": ("Replaying", ["replay", *BANK, file]),
    }[name]
    bar, printed = with_errors_on_a_terminal(*arguments)
    assert labelled in bar
    assert "100%" in bar
    assert bar.endswith("\x1b[?25h\n")  # The cursor is visible again.
    piped = run(*arguments)
    assert piped.stderr == ""
    lines = [[line for line in text.splitlines() if "attempts in" not in line] for text in (printed, piped.stdout)]
    assert len(lines[0]) == len(lines[1]) > 0
    if name in {"evaluate", "check"}:
        assert printed == piped.stdout


def test_progress_without_a_terminal_is_plain_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    with progress.progress("Counting", 3) as go_on:
        go_on(1)
        go_on(2)
    assert capsys.readouterr() == ("", "Counting: 1 of 3\nCounting: 3 of 3\n")


def test_progress_of_a_replay_follows_its_new_session(monkeypatch):
    values = []
    monkeypatch.setattr(command, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(command, "progress", lambda *_: contextlib.nullcontext(values.append))
    older, newer = {"session_id": "a", "version": 9}, {"session_id": "b", "version": 0}

    async def watched():
        finished = asyncio.get_running_loop().create_future()
        summaries = iter([older, older, {**newer, "version": 2}, {**newer, "version": 5}])

        async def send(method, params):
            assert (method, params) == ("list_sessions", {"parent": "a", "order": "-created", "limit": 1})
            latest = next(summaries, newer)
            if latest["version"] == 5:
                finished.set_result("replayed")
            return [latest]

        return await command._show_progress(send, finished, {"parent": "a"}, 7)

    assert asyncio.run(watched()) == "replayed"
    assert values == [2, 3, 2]
