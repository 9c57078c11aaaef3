"""`check` finds the mistakes in toolpacks, and says of each where it is, what it is and what to do."""

import re
import sys

import pytest
import serving
from command_line import invoke

from server import TaskEnvironment
from server.base.errors import RegistrationError
from server.base.settings import Settings, unknown_variables
from server.features.checking import calls
from server.features.checking.examples import example_arguments, known_values
from server.functions_runtime import make_function
from server.packs import checks
from server.packs.loading import load_catalog

WRONG = {file.stem: file for file in sorted(serving.PACKS.with_name("wrong_toolpacks").glob("*.py"))}
"""Toolpacks that `check` finds fault with, but for `sound`."""

SAYS = re.compile(r"# says: (.*\n(?:#       .*\n)*)")
"""A line that `check` prints of the file; `…` stands for any text, FILE for the file and MODULE for its name."""

SUMMARY = re.compile(r"\d+ toolpacks? with \d+ functions?: no problems\.")


LIMITS = {
    "build": (checks, "BUILD_SECONDS"),
    "call": (calls, "SECONDS_EACH"),
    "calls": (calls, "SECONDS"),
}


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Limits that a slow machine keeps, too, and no module that another test has loaded under the same name."""
    for module, name in LIMITS.values():
        monkeypatch.setattr(module, name, serving.PATIENCE)
    monkeypatch.setenv("TOOLPACK_IMPORT_SECONDS", str(serving.PATIENCE))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("toolpacks.wrong_"):
            del sys.modules[name]


def check(*arguments):
    """Run `check`; get its exit status and its lines, without details and summary."""
    result = invoke("check", *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.output.splitlines() if not line.startswith("    ")]
    return result.exit_code, [line for line in lines if not SUMMARY.fullmatch(line)], result.output


def pattern(said, file):
    text = said.replace("FILE", str(file)).replace("MODULE", file.stem)
    return ".*".join(map(re.escape, text.split("…")))


ENDLESS = {
    "endless": "call",
    "sleeps": "call",
    "endless_import": "import",
    "sleeping_import": "import",
    "factory_never_ends": "build",
}
"""What passes a limit, and which."""


def copied(name, folder):
    """Copy a file of `WRONG` under a name that no module has, and get the lines that `check` prints of it."""
    code = WRONG[name].read_text(encoding="utf-8")
    file = folder / f"wrong_{name}.py"
    file.write_text(code, encoding="utf-8")
    return file, [said.replace("\n#       ", " ").strip() for said in SAYS.findall(code)]


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_found_and_said(tmp_path, name, monkeypatch):
    if name in ENDLESS:
        if ENDLESS[name] == "import":
            monkeypatch.setenv("TOOLPACK_IMPORT_SECONDS", "0.3")
        else:
            monkeypatch.setattr(*LIMITS[ENDLESS[name]], 0.3)
    file, expected = copied(name, tmp_path)
    status, lines, output = check("--pack-dir", tmp_path)
    assert len(lines) == len(expected), output
    for line, said in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern(said, file), line), f"\n{line}\n{said}"
    assert status == (0 if all(said.startswith("note: ") for said in expected) else 1)
    assert bool(expected) == (output != "1 toolpack with 1 function: no problems.\n") == (name != "sound")
    assert "/server/" not in output.replace("from 'server' (", "").partition("ImportError")[0]


def test_null_bytes_are_found(tmp_path):
    file = tmp_path / "wrong_null_bytes.py"
    file.write_bytes(b"x = '\0'\n")
    assert check("--pack-dir", tmp_path)[:2] == (1, [f"{file}: it holds null bytes: save it as a text file in UTF-8."])


def write(folder, name, code):
    folder.mkdir(exist_ok=True)
    (folder / f"wrong_{name}.py").write_text(code)
    return folder


def headed(name, code=""):
    return f'from server import Toolpack\n\ntoolpack = Toolpack("{name}")\n{code}'


def sound(name):
    return headed(name, f'\n\n@toolpack.function\ndef f_{name}():\n    """Do it."""\n')


class TestSeveralFiles:
    """Mistakes that one file alone doesn't have."""

    def test_two_folders_have_a_file_of_one_name(self, tmp_path):
        one, two = write(tmp_path / "one", "crm", sound("one")), write(tmp_path / "two", "crm", sound("two"))
        status, lines, _ = check("--pack-dir", one, "--pack-dir", two)
        assert (status, lines) == (
            1,
            [
                f"{two}/wrong_crm.py: {one}/wrong_crm.py has the same name, so this one would be ignored: rename one.",
            ],
        )
        with pytest.raises(RegistrationError, match="would be ignored: rename one"):
            load_catalog((one, two))

    def test_the_same_folder_twice_is_no_mistake(self, tmp_path):
        write(tmp_path, "twice", sound("twice"))
        assert check("--pack-dir", tmp_path, "--pack-dir", f"{tmp_path}/.")[:2] == (0, [])

    def test_a_broken_file_beside_the_named_toolpack_is_a_note(self, tmp_path):
        write(tmp_path, "a_broken", "import a_module_nowhere\n")
        write(tmp_path, "b_bare", headed("bare", "\n\n@toolpack.function\ndef bare(): ...\n"))
        write(tmp_path, "c_sound", sound("other"))
        status, lines, _ = check("--pack-dir", tmp_path, "--packs", "other")
        assert status == 0
        assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [
            f"{tmp_path}/wrong_a_broken.py:1",
            f"{tmp_path}/wrong_b_bare.py:6",
        ]
        assert all(line.endswith("It isn't loaded, for --packs doesn't name it.") for line in lines)
        assert list(load_catalog((tmp_path,), ["other"]).toolpacks) == ["other"]

    def test_a_broken_file_is_a_problem_if_the_named_toolpack_may_be_in_it(self, tmp_path):
        write(tmp_path, "broken", "import a_module_nowhere\n")
        status, lines, _ = check("--pack-dir", tmp_path, "--packs", "other")
        assert status == 1
        assert "wrong_broken.py:1: ModuleNotFoundError" in lines[0]
        assert "no module has a toolpack 'other'" in lines[1]

    def test_a_helper_is_imported_by_its_full_name(self, tmp_path):
        write(tmp_path, "user", "import wrong_helper\n")
        write(tmp_path, "helper", "VALUE = 1\n")
        _, lines, _ = check("--pack-dir", tmp_path)
        assert any(line.endswith("'wrong_helper': import it as toolpacks.wrong_helper.") for line in lines)

    def test_a_folder_whose_name_ends_like_a_file_is_none_of_them(self, tmp_path):
        (tmp_path / "wrong_folder.py").mkdir()
        write(tmp_path, "file", sound("wrong_file"))
        assert check("--pack-dir", tmp_path)[:2] == (0, [])

    def test_a_folder_that_is_none(self, tmp_path):
        assert check("--pack-dir", tmp_path / "nowhere")[1][0].endswith("nowhere is not a folder: correct --pack-dir.")


class TestFlags:
    def test_without_calls_nothing_is_run(self, tmp_path):
        mark = tmp_path / "mark"
        body = f'@toolpack.function\ndef f():\n    """Do it."""\n    open({str(mark)!r}, "w").close()\n'
        write(tmp_path, "marks", headed("marks", body))
        assert check("--pack-dir", tmp_path, "--no-calls")[:2] == (0, [])
        assert not mark.exists()
        assert check("--pack-dir", tmp_path)[:2] == (0, [])
        assert mark.exists()

    def test_strict_fails_for_notes(self, tmp_path):
        write(tmp_path, "empty", headed("empty"))
        assert check("--pack-dir", tmp_path)[0] == 0
        assert check("--pack-dir", tmp_path, "--strict")[0] == 1

    def test_what_functions_print_is_not_shown(self, tmp_path):
        body = '@toolpack.function\ndef f():\n    """Do it."""\n    print("a line of its own")\n'
        write(tmp_path, "prints", headed("prints", body))
        assert "a line of its own" not in check("--pack-dir", tmp_path)[2]


def test_a_function_that_raises_is_shown_with_its_traceback(tmp_path):
    body = '@toolpack.function\ndef f():\n    """Do it."""\n    helper()\n\n\ndef helper():\n    return nothing\n'
    write(tmp_path, "raises", headed("raises", body))
    _, _, output = check("--pack-dir", tmp_path)
    shown = [line.strip() for line in output.splitlines() if line.startswith("    ")]
    assert shown[0] == "Traceback (most recent call last):"
    assert [line.rpartition(", in ")[2] for line in shown if ", in " in line] == ["f", "helper"]
    assert shown[-1].startswith("NameError: name 'nothing' is not defined")


def test_all_functions_together_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(*LIMITS["calls"], 0)
    names = ("f", "g", "h")
    body = "".join(f'@toolpack.function\ndef {n}():\n    """Do it."""\n    while True: pass\n\n\n' for n in names)
    write(tmp_path, "slow", headed("slow", body))
    status, lines, _ = check("--pack-dir", tmp_path)
    assert status == 0
    assert lines == ["note: check: 3 functions weren't called, because 0 s are over."]


def test_bundled_toolpacks_have_nothing_to_be_said():
    assert check("--packs", "bank,workspace")[:2] == (0, [])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TOOLPACK_PACKDIR", "did you mean TOOLPACK_PACK_DIR?"),
        ("TOOLPACK_TOKNS", "did you mean TOOLPACK_TOKENS?"),
        ("TOOLPACK_LOG_LVL", "did you mean TOOLPACK_LOG_LEVEL?"),
        ("TOOLPACKS_PORT", "did you mean TOOLPACK_PORT?"),
        ("TOOLPACK_NONSENSE", "docs/operate.md lists them."),
    ],
)
def test_a_mistyped_variable_is_named(monkeypatch, tmp_path, name, said):
    monkeypatch.setenv(name, "x")
    write(tmp_path, "sound", sound("sound"))
    assert f"note: the environment variable {name} isn't a setting: {said}" in check("--pack-dir", tmp_path)[1]


@pytest.mark.parametrize(
    "name",
    [
        *("TOOLPACK_SERVICE_HOST", "TOOLPACK_SERVICE_PORT", "TOOLPACK_SERVICE_PORT_HTTP", "TOOLPACK_PORT_8000_TCP"),
        *("TOOLPACK_PORT_8000_TCP_ADDR", "TOOLPACK_SERVER_SERVICE_HOST", "TOOLPACK_TOKEN", "TOOLPACK_REDIS_PORT"),
        *(f"TOOLPACK_{field.upper()}" for field in Settings.model_fields),
    ],
)
def test_other_variables_are_not(monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert not [notice for notice in unknown_variables(()) if name in notice]


# The arguments that functions are called with


IMPORTS = """
import datetime, enum, uuid
from typing import Annotated, Any, Literal
from pydantic import BaseModel, Field
"""


def arguments_of(code, known=None):
    names = {}
    exec(IMPORTS + code, names)
    model = make_function(names["f"]).parameters
    return [*example_arguments(model, known or {})]


@pytest.mark.parametrize(
    "kind",
    [
        *("str", "int", "float", "bool", "list[int]", "dict[str, int]", "tuple[int, str]", "set[str]", "str | None"),
        *("Literal['a', 'b']", "datetime.date", "datetime.datetime", "datetime.timedelta", "uuid.UUID", "bytes", "Any"),
        *("Annotated[int, Field(gt=5)]", "Annotated[int, Field(ge=3, lt=5)]", "Annotated[float, Field(gt=0, lt=1)]"),
        *("Annotated[str, Field(min_length=9)]", "Annotated[str, Field(max_length=2)]"),
        *("Annotated[list[str], Field(min_length=3)]", "Annotated[int, Field(multiple_of=7, ge=10)]"),
        *("Colour", "Point", "list[Point]", "Tree", "Annotated[str, Field(pattern='^[a-z]+$')]", "int | str"),
    ],
)
def test_arguments_fit_the_schema(kind):
    code = f'''
class Colour(enum.StrEnum):
    RED = "red"

class Point(BaseModel):
    x: int
    y: int = 2

class Tree(BaseModel):
    name: str
    children: list["Tree"]

def f(x: {kind}):
    """Do it.

    :param x: X.
    """
'''
    assert arguments_of(code)


def test_examples_come_first_then_values_of_the_environment():
    code = '''
def f(iban: str, user_id: int, example: Annotated[str, Field(examples=["mine"])], more: int = 3):
    """Do it.

    :param iban: I.
    :param user_id: U.
    :param example: E.
    :param more: M.
    """
'''
    first, second = arguments_of(code, {"iban": [5, "DE1"], "id": [7], "example": ["theirs"]})
    assert first == {"iban": "DE1", "user_id": 7, "example": "mine"}
    assert second == {"iban": "text", "user_id": 1, "example": "mine", "more": 3}


def test_the_keys_of_a_dict_are_known_by_its_name_and_a_shared_string_by_each_of_its_names():
    class Env(TaskEnvironment):
        users: dict[str, dict[str, object]]
        stock: dict[str, int]

    user = "ann"
    known = known_values(Env(users={user: {"user_id": user, "age": 30}}, stock={"pen": 1}))
    assert known["user_id"] == ["ann"]
    assert known["users"][0] == "ann"
    code = '''
def f(user_id: str, stock: str):
    """Do it.

    :param user_id: U.
    :param stock: S.
    """
'''
    first, _ = arguments_of(code, known)
    assert first == {"user_id": "ann", "stock": "pen"}


SCENARIO = '''
from server import Toolpack


class Drive:
    def __init__(self):
        self.files: dict

    def _load(self, scenario: dict, owner: str = "ann"):
        self.files = dict(scenario)BAD

    def look(self) -> int:
        """Look."""
        self.looked = True
        return len(self.files)

    def add(self, name: str) -> int:
        """Add."""
        self.files[name] = 1
        return len(self.files)


toolpack = Toolpack.from_class("NAME", Drive, options="_load", read_only=["look"])
'''


def test_instances_are_prepared_with_made_up_options(tmp_path):
    file = tmp_path / "wrong_prepared.py"
    file.write_text(SCENARIO.replace("BAD", "").replace("NAME", file.stem))
    status, (line,), _ = check("--pack-dir", tmp_path)
    assert status == 1
    assert f"{file}:12: Drive.look: it promises read_only=True but changes env: .looked is new" in line


def test_instances_that_no_made_up_options_prepare_are_named_once(tmp_path):
    file = tmp_path / "wrong_unprepared.py"
    file.write_text(SCENARIO.replace("BAD", "; scenario['root']").replace("NAME", file.stem))
    status, (line,), _ = check("--pack-dir", tmp_path)
    assert status == 0
    assert line.startswith(f"note: {file}:23: Toolpack('{file.stem}'): functions of '{file.stem}' can't be tried")
    assert '{"scenario":{}}: make the toolpack with options=' in line
