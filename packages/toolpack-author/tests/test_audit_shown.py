"""The output of `audit`: findings on standard output, progress on standard error, and control characters escaped."""

from command_line import run
from serving import PACKS
from test_progress import BANK, TASK, with_errors_on_a_terminal
from test_terminal import assert_escaped, folder, on_a_terminal

__all__ = ["folder"]  # a fixture


def test_progress_bar_is_shown_only_on_a_terminal():
    arguments = ["audit", *BANK, "--task", TASK, "--mutants", 1, "--no-hash-seeds"]
    bar, printed = with_errors_on_a_terminal(*arguments)
    assert "Auditing tasks" in bar
    assert "100%" in bar
    assert bar.endswith("\x1b[?25h\n")  # shows the cursor again
    piped = run(*arguments)
    assert piped.stderr == ""
    assert len(printed.splitlines()) == len(piped.stdout.splitlines()) > 0


def test_messages_of_evaluators_are_escaped(folder):
    arguments = ["--pack-dir", folder, "--packs", "said", "--no-hash-seeds", "--mutants", "20"]
    assert_escaped(on_a_terminal("audit", *arguments, status=1))


def test_audit_without_matching_tasks_says_so():
    done = run("audit", "--pack-dir", PACKS, "--packs", "vault", "--no-hash-seeds")
    assert (done.returncode, done.stdout) == (
        0,
        "There is no task to audit: choose toolpacks with --packs or --pack-dir, and tasks with --task.\n",
    )
