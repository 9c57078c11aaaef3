"""`toolpack-server new`: the files that it writes work unchanged, and it overwrites no file."""

import os
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import command_line
import pytest

new = partial(command_line.invoke, "new")


@pytest.mark.parametrize(
    ("flags", "names", "passed_count"),
    [
        ([], "buy milk", "2 passed"),
        (["--dir", "sub"], "buy milk", "2 passed"),
        (["--database"], "notebook", "3 passed"),
    ],
    ids=["here", "elsewhere", "database"],
)
@pytest.mark.heavy
def test_printed_commands_of_new_work_unchanged(tmp_path, monkeypatch, flags, names, passed_count):
    monkeypatch.chdir(tmp_path)
    printed = new("chores", *flags).output
    commands = [line.strip() for line in printed.partition("Try:\n")[2].splitlines()]
    assert [command.split()[0] for command in commands] == [
        "toolpack-server",
        "toolpack-server",
        "python",
        "toolpack-server",
    ]
    check, call, test, _serve = commands
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command, says in ((check, "1 toolpack with 3 functions: no problems."), (call, names), (test, passed_count)):
        ended = subprocess.run(
            ["bash", "-c", command],
            env=os.environ | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout
        assert says in ended.stdout


@pytest.mark.parametrize("flags", [[], ["--database"]])
def test_package_has_the_same_toolpack_and_test_as_the_file(tmp_path, monkeypatch, flags):
    monkeypatch.chdir(tmp_path)
    printed = new("my_chores", "--package", *flags).output
    new("my_chores", *flags)
    project = tmp_path / "my-chores-toolpack"
    files = [line.removeprefix("wrote ") for line in printed.splitlines() if line.startswith("wrote ")]
    assert sorted(files) == sorted(str(path.relative_to(tmp_path)) for path in project.rglob("*") if path.is_file())
    toolpack = (project / "src" / "my_chores_toolpack" / "__init__.py").read_text()
    assert toolpack == (tmp_path / "packs" / "my_chores.py").read_text()
    test = (tmp_path / "tests" / "test_my_chores.py").read_text().partition("import toolpack\n")[2]
    assert test in (project / "tests" / "test_my_chores.py").read_text()
    own = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert own["entry-points"] == {"toolpack_server.toolpacks": {"my_chores": "my_chores_toolpack"}}
    commands = [line.strip() for line in printed.partition("Try:\n")[2].splitlines()]
    assert commands[0] == "python -m pip install -q -e 'my-chores-toolpack[test]'"
    assert commands[1] == "python -m pytest my-chores-toolpack"
    assert all(command.startswith("toolpack-server ") and "--packs my_chores" in command for command in commands[2:])


def test_new_overwrites_no_file(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_chores.py").write_text("mine")
    refused = new("chores", "--dir", tmp_path)
    assert refused.exit_code == 1
    assert "tests/test_chores.py exists already: choose another name" in refused.output
    assert not (tmp_path / "packs").exists()
    (tmp_path / "chores-toolpack").mkdir()
    (tmp_path / "chores-toolpack" / "README.md").write_text("mine")
    refused = new("chores", "--package", "--dir", tmp_path)
    assert "chores-toolpack/README.md exists already: choose another name" in refused.output
    assert [path.name for path in (tmp_path / "chores-toolpack").iterdir()] == ["README.md"]


@pytest.mark.parametrize("name", ["my-pack", "1st", "class", "_hidden", "", "a.b", "é", "x" * 65])
def test_invalid_module_name_is_rejected(tmp_path, name):
    refused = new("--dir", tmp_path, "--", name)
    assert refused.exit_code == 2
    assert "Error: " in refused.output
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    refused = new("chores", "--dir", tmp_path / "file")
    assert (refused.exit_code, "can't be written: " in refused.output) == (1, True)


def test_commands_outside_path_are_printed_with_their_folder(tmp_path):
    beside = Path(sys.executable).parent
    (tmp_path / ".venv").symlink_to(beside.parent)
    printed = {
        path: subprocess.run(
            [".venv/bin/toolpack-server", "new", name],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for name, path in (("chores", "/usr/bin:/bin"), ("errands", f"{beside}:/usr/bin:/bin"))
    }
    off, on = printed.values()
    assert "  .venv/bin/toolpack-server check --pack-dir packs\n" in off
    assert "  .venv/bin/python -m pytest --pack-dir packs tests/test_chores.py\n" in off
    assert "  toolpack-server check --pack-dir packs\n" in on
    assert "  python -m pytest --pack-dir packs tests/test_errands.py\n" in on
