"""`check` without trial calls: each mistake is reported with its location and its remedy."""

import sys

import pytest
import serving
from command_line import invoke
from wrong_toolpacks import WRONG, assert_findings, headed, sound, write
from wrong_toolpacks import check as check_with

from toolpack_server.base.errors import RegistrationError
from toolpack_server.base.settings import Settings, unknown_variables
from toolpack_server.features.authoring.checking import command
from toolpack_server.packs import checks, loading
from toolpack_server.packs.loading import load_catalog


def check(*arguments):
    """Run `check` without trial calls, which need the toolpack-author package."""
    return check_with("--no-calls", *arguments)


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Raise the time limits for slow machines, and unload modules that an earlier test loaded under the same name."""
    monkeypatch.setattr(checks, "BUILD_SECONDS", serving.PATIENCE)
    monkeypatch.setattr(loading, "IMPORT_SECONDS", serving.PATIENCE)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("toolpacks.wrong_"):
            del sys.modules[name]


ENDLESS = {"endless_import": "import", "sleeping_import": "import", "factory_never_ends": "build"}
"""The packs that exceed a time limit, each with that limit."""


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_reported(tmp_path, name, monkeypatch):
    if ENDLESS.get(name) == "import":
        monkeypatch.setattr(loading, "IMPORT_SECONDS", 0.3)
    elif name in ENDLESS:
        monkeypatch.setattr(checks, "BUILD_SECONDS", 0.3)
    assert_findings(tmp_path, name, called=False)


def test_null_bytes_are_reported(tmp_path):
    file = tmp_path / "wrong_null_bytes.py"
    file.write_bytes(b"x = '\0'\n")
    assert check("--pack-dir", tmp_path)[:2] == (
        1,
        [f"{file}: the file contains null bytes: save it as a text file in UTF-8."],
    )


class TestSeveralFiles:
    """Mistakes that involve several files."""

    def test_files_with_the_same_name_in_two_folders_are_a_problem(self, tmp_path):
        one, two = write(tmp_path / "one", "crm", sound("one")), write(tmp_path / "two", "crm", sound("two"))
        status, lines, _ = check("--pack-dir", one, "--pack-dir", two)
        assert (status, lines) == (
            1,
            [
                f"{two}/wrong_crm.py: {one}/wrong_crm.py has the same name, so this file would be ignored: rename one.",
            ],
        )
        with pytest.raises(RegistrationError, match="would be ignored: rename one"):
            load_catalog((one, two))

    def test_folder_that_is_passed_twice_is_no_problem(self, tmp_path):
        write(tmp_path, "twice", sound("twice"))
        assert check("--pack-dir", tmp_path, "--pack-dir", f"{tmp_path}/.")[:2] == (0, [])

    def test_broken_file_of_another_toolpack_is_only_a_note(self, tmp_path):
        write(tmp_path, "a_broken", "import a_module_nowhere\n")
        write(tmp_path, "b_bare", headed("bare", "\n\n@toolpack.function\ndef bare(): ...\n"))
        write(tmp_path, "c_sound", sound("other"))
        status, lines, _ = check("--pack-dir", tmp_path, "--packs", "other")
        assert status == 0
        assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [
            f"{tmp_path}/wrong_a_broken.py:1",
            f"{tmp_path}/wrong_b_bare.py:6",
        ]
        assert all(
            line.endswith("This module is skipped, because --packs doesn't name its toolpacks.") for line in lines
        )
        assert list(load_catalog((tmp_path,), ["other"]).toolpacks) == ["other"]

    def test_broken_file_is_a_problem_if_a_named_toolpack_is_missing(self, tmp_path):
        write(tmp_path, "broken", "import a_module_nowhere\n")
        status, lines, _ = check("--pack-dir", tmp_path, "--packs", "other")
        assert status == 1
        assert "wrong_broken.py:1: ModuleNotFoundError" in lines[0]
        assert "no module has a toolpack 'other'" in lines[1]

    def test_helper_must_be_imported_by_its_full_name(self, tmp_path):
        write(tmp_path, "user", "import wrong_helper\n")
        write(tmp_path, "helper", "VALUE = 1\n")
        _, lines, _ = check("--pack-dir", tmp_path)
        assert any(line.endswith("'wrong_helper': import it as toolpacks.wrong_helper.") for line in lines)

    def test_folder_with_a_file_suffix_is_ignored(self, tmp_path):
        (tmp_path / "wrong_folder.py").mkdir()
        write(tmp_path, "file", sound("wrong_file"))
        assert check("--pack-dir", tmp_path)[:2] == (0, [])

    def test_missing_folder_is_a_problem(self, tmp_path):
        assert check("--pack-dir", tmp_path / "nowhere")[1][0].endswith("nowhere is not a folder: correct --pack-dir.")


def test_strict_fails_on_notes(tmp_path):
    write(tmp_path, "empty", headed("empty"))
    assert check("--pack-dir", tmp_path)[0] == 0
    assert check("--pack-dir", tmp_path, "--strict")[0] == 1


def test_missing_toolpack_author_is_reported(tmp_path, monkeypatch):
    write(tmp_path, "sound", sound("sound"))
    monkeypatch.setattr(command, "entry_points", lambda **_: ())
    result = invoke("check", "--pack-dir", tmp_path)
    assert result.exit_code == 0
    assert result.stdout == "1 toolpack with 1 function: no problems.\n"
    assert result.stderr == f"{command.NOT_CALLED}\n"
    assert invoke("check", "--pack-dir", tmp_path, "--no-calls").stderr == ""
    required = invoke("check", "--pack-dir", tmp_path, "--calls")
    assert (required.exit_code, command.NOT_CALLED in required.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TOOLPACK_PACKDIR", "did you mean TOOLPACK_PACK_DIR?"),
        ("TOOLPACK_TOKNS", "did you mean TOOLPACK_TOKENS?"),
        ("TOOLPACK_LOG_LVL", "did you mean TOOLPACK_LOG_LEVEL?"),
        ("TOOLPACKS_PORT", "did you mean TOOLPACK_PORT?"),
        ("TOOLPACK_NONSENSE", "docs/operate/settings.md lists them."),
    ],
)
def test_mistyped_environment_variable_is_reported(monkeypatch, tmp_path, name, message):
    monkeypatch.setenv(name, "x")
    write(tmp_path, "sound", sound("sound"))
    assert f"note: the environment variable {name} isn't a setting: {message}" in check("--pack-dir", tmp_path)[1]


@pytest.mark.parametrize(
    "name",
    [
        *("TOOLPACK_SERVICE_HOST", "TOOLPACK_SERVICE_PORT", "TOOLPACK_SERVICE_PORT_HTTP", "TOOLPACK_PORT_8000_TCP"),
        *("TOOLPACK_PORT_8000_TCP_ADDR", "TOOLPACK_SERVER_SERVICE_HOST", "TOOLPACK_TOKEN", "TOOLPACK_REDIS_PORT"),
        *Settings.variables(),
    ],
)
def test_known_and_foreign_environment_variables_are_accepted(monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert not [notice for notice in unknown_variables(()) if name in notice]
