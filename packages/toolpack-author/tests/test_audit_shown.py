"""What `audit` writes: findings on standard output, how far it is on standard error, nothing raw."""

from command_line import run
from serving import PACKS
from test_progress import BANK, TASK, with_errors_on_a_terminal
from test_terminal import assert_escaped, folder, on_a_terminal

__all__ = ["folder"]  # the fixture


def test_it_shows_a_bar_on_a_terminal_and_only_there():
    arguments = ["audit", *BANK, "--task", TASK, "--mutants", 1, "--no-hash-seeds"]
    bar, printed = with_errors_on_a_terminal(*arguments)
    assert "Auditing tasks" in bar
    assert "100%" in bar
    assert bar.endswith("\x1b[?25h\n")  # the cursor is shown again
    piped = run(*arguments)
    assert piped.stderr == ""
    assert len(printed.splitlines()) == len(piped.stdout.splitlines()) > 0


def test_what_evaluators_have_said_is_escaped(folder):
    asked = ["--pack-dir", folder, "--packs", "said", "--no-hash-seeds", "--mutants", "20"]
    assert_escaped(on_a_terminal("audit", *asked, status=1))


def test_that_no_task_was_chosen_is_said():
    done = run("audit", "--pack-dir", PACKS, "--packs", "vault", "--no-hash-seeds")
    assert (done.returncode, done.stdout) == (
        0,
        "There is no task to audit: choose toolpacks with --packs or --pack-dir, and tasks with --task.\n",
    )
