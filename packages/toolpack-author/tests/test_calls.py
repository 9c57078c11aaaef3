"""The trial calls of `check`: each mistake is reported with its location and its remedy."""

import sys

import pytest
import serving
from test_from_class import CATALOG
from wrong_toolpacks import WRONG, assert_findings, check, headed, write

from toolpack_author.checking import calls
from toolpack_author.checking.examples import example_arguments, known_values
from toolpack_server import TaskEnvironment
from toolpack_server.features.authoring.checking.findings import CheckedFunction
from toolpack_server.functions_runtime import make_function
from toolpack_server.packs import checks, loading

LIMITS = {
    "build": (checks, "BUILD_SECONDS"),
    "call": (calls, "SECONDS_EACH"),
    "calls": (calls, "SECONDS"),
}


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Raise the time limits for slow machines, and unload modules with a name that an earlier test has used."""
    for module, name in LIMITS.values():
        monkeypatch.setattr(module, name, serving.PATIENCE)
    monkeypatch.setattr(loading, "IMPORT_SECONDS", serving.PATIENCE)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("toolpacks.wrong_"):
            del sys.modules[name]


ENDLESS = {
    "endless": "call",
    "sleeps": "call",
    "endless_import": "import",
    "sleeping_import": "import",
    "factory_never_ends": "build",
}
"""The packs that exceed a time limit, each with that limit."""


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_reported(tmp_path, name, monkeypatch):
    if name in ENDLESS:
        if ENDLESS[name] == "import":
            monkeypatch.setattr(loading, "IMPORT_SECONDS", 0.3)
        else:
            monkeypatch.setattr(*LIMITS[ENDLESS[name]], 0.3)
    expected = assert_findings(tmp_path, name, called=True)
    assert bool(expected) == (name != "sound")


def test_no_calls_option_runs_no_function(tmp_path):
    mark = tmp_path / "mark"
    body = f'@toolpack.function\ndef f():\n    """Do it."""\n    open({str(mark)!r}, "w").close()\n'
    write(tmp_path, "marks", headed("marks", body))
    assert check("--pack-dir", tmp_path, "--no-calls")[:2] == (0, [])
    assert not mark.exists()
    assert check("--pack-dir", tmp_path)[:2] == (0, [])
    assert mark.exists()


def test_volume_without_its_feature_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLPACK_FEATURES", "-parts")
    body = "class World(TaskEnvironment):\n    db: Database = Database()\n\ntoolpack = Toolpack('lacking', World)\n"
    body += '@toolpack.function\ndef f():\n    """Do it."""\n'
    text = f'"""A toolpack."""\n\nfrom toolpack_server import Database, TaskEnvironment, Toolpack\n\n{body}'
    path = write(tmp_path, "lacking", text) / "wrong_lacking.py"
    line = f"{path}:8: Toolpack('lacking'): no session of 'lacking' can be created: No feature of this server provides "
    line += "volumes of the kind 'database'. Start the server with the feature that provides them."
    assert check("--pack-dir", tmp_path)[:2] == (1, [line])


def test_output_of_functions_is_not_shown(tmp_path):
    body = '@toolpack.function\ndef f():\n    """Do it."""\n    print("a line of its own")\n'
    write(tmp_path, "prints", headed("prints", body))
    assert "a line of its own" not in check("--pack-dir", tmp_path)[2]


def test_toolpacks_that_load_only_once_are_reported(tmp_path):
    body = f"""\
from pathlib import Path
try:
    Path({str(tmp_path / "loaded")!r}).touch(exist_ok=False)
except FileExistsError:
    raise RuntimeError("one at a time") from None
@toolpack.function
def f():
    \"\"\"Do it.\"\"\"
"""
    write(tmp_path, "once", headed("once", body))
    status, (said,), _ = check("--pack-dir", tmp_path)
    assert status == 1
    assert said.startswith("check: functions weren't called, because a new process can't load the toolpacks: ")
    assert said.endswith(
        "wrong_once.py:8: RuntimeError: one at a time: correct it, or move the file out of the folder."
    )


def test_function_that_raises_is_shown_with_its_traceback(tmp_path):
    body = '@toolpack.function\ndef f():\n    """Do it."""\n    helper()\n\n\ndef helper():\n    return nothing\n'
    write(tmp_path, "raises", headed("raises", body))
    _, _, output = check("--pack-dir", tmp_path)
    shown = [line.strip() for line in output.splitlines() if line.startswith("    ")]
    assert shown[0] == "Traceback (most recent call last):"
    assert [line.rpartition(", in ")[2] for line in shown if ", in " in line] == ["f", "helper"]
    assert shown[-1].startswith("NameError: name 'nothing' is not defined")


def test_all_functions_together_have_a_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(*LIMITS["calls"], 0)
    names = ("f", "g", "h")
    body = "".join(f'@toolpack.function\ndef {n}():\n    """Do it."""\n    while True: pass\n\n\n' for n in names)
    write(tmp_path, "slow", headed("slow", body))
    status, lines, _ = check("--pack-dir", tmp_path)
    assert status == 0
    assert lines == ["note: check: 3 functions weren't called: the time limit of 0 s is over."]


def test_no_function_of_the_catalog_is_falsely_read_only():
    functions = [CheckedFunction(pack.name, name, "") for pack in CATALOG.toolpacks.values() for name in pack.functions]
    assert not [finding for finding in calls.try_functions(lambda: CATALOG, functions) if finding.is_problem]


def test_bundled_toolpacks_have_no_problems():
    assert check("--packs", "bank,workspace")[:2] == (0, [])


# The arguments of trial calls


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


def test_examples_are_tried_before_values_of_the_environment():
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


def test_dict_keys_and_shared_strings_are_found_by_field_name():
    class Env(TaskEnvironment):
        users: dict[str, dict[str, object]]
        stock: dict[str, int]

    user = "ann"
    values = known_values(Env(users={user: {"user_id": user, "age": 30}}, stock={"pen": 1}))
    assert values["user_id"] == ["ann"]
    assert values["users"][0] == "ann"
    code = '''
def f(user_id: str, stock: str):
    """Do it.

    :param user_id: U.
    :param stock: S.
    """
'''
    first, _ = arguments_of(code, values)
    assert first == {"user_id": "ann", "stock": "pen"}


SCENARIO = '''
from toolpack_server import Toolpack


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


def test_instances_are_prepared_with_generated_options(tmp_path):
    file = tmp_path / "wrong_prepared.py"
    file.write_text(SCENARIO.replace("BAD", "").replace("NAME", file.stem))
    status, (line,), _ = check("--pack-dir", tmp_path)
    assert status == 1
    assert f"{file}:12: Drive.look: it promises read_only=True but changes env: .looked is new" in line


def test_instances_that_reject_generated_options_are_listed_once(tmp_path):
    file = tmp_path / "wrong_unprepared.py"
    file.write_text(SCENARIO.replace("BAD", "; scenario['root']").replace("NAME", file.stem))
    status, (line,), _ = check("--pack-dir", tmp_path)
    assert status == 0
    assert line.startswith(f"note: {file}:23: Toolpack('{file.stem}'): functions of '{file.stem}' can't be tried")
    assert '{"scenario":{}} don\'t fit: make the toolpack with options=' in line


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        ("_load", 'pass options="_load" to the toolpack, or set it in `__init__`.'),
        ("load", "set it in `__init__`."),
    ],
)
def test_a_method_that_sets_a_missing_attribute_is_named_once(tmp_path, method, advice):
    file = tmp_path / f"wrong_unset{method}.py"
    source = SCENARIO.replace("BAD", "").replace("NAME", file.stem).replace("_load(", f"{method}(")
    file.write_text(source.replace(', options="_load", read_only=["look"]', ""))
    status, (line,), _ = check("--pack-dir", tmp_path)
    assert status == 1
    assert line.startswith(f"{file}:12: Drive.look: it raises AttributeError: 'Drive' object has no attribute 'files'")
    assert line.endswith(f"`{method}` sets it, but wasn't called: {advice} Other functions might also need it.")
