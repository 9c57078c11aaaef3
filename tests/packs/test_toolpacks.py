"""Discovery and loading of toolpacks. Each problem stops the start and names the file and the remedy."""

import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import serving
from pydantic import BaseModel

from toolpack_server import Depends, EmptyEnv, TaskEnvironment, Toolpack
from toolpack_server.base.errors import InvalidParamsError, RegistrationError
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import inspect_toolpacks, load_catalog

HEAD = '"""P."""\nfrom toolpack_server import TaskEnvironment, Toolpack, ToolpackUnavailable\n\n\n'


@pytest.fixture
def folder(tmp_path, request):
    """Return a function that writes modules of toolpacks with unique names.

    The names are unique because a process imports each name only once.
    """
    prefix = f"made_{abs(hash(request.node.nodeid))}_"
    before = set(sys.modules)

    def write(**modules):
        for name, code in modules.items():
            (tmp_path / f"{'_' * name.startswith('_')}{prefix}{name}.py").write_text(HEAD + code)
        return tmp_path

    write.file = lambda name: str(tmp_path / f"{prefix}{name}.py")
    yield write
    for name in set(sys.modules) - before:
        if name.startswith(f"toolpacks.{prefix}"):
            del sys.modules[name]


def pack(name, function="f", suffix=""):
    return f'toolpack = Toolpack("{name}"{suffix})\n\n\n@toolpack.function\ndef {function}():\n    """Do it."""\n'


def problem(folder, **options):
    with pytest.raises(RegistrationError) as stopped:
        load_catalog((folder,), **options)
    return str(stopped.value)


def test_bundled_packs_are_the_default():
    assert {"bank", "workspace"} <= set(load_catalog().toolpacks)
    assert not set(serving.FIXTURES) & set(load_catalog().toolpacks)


def test_folder_replaces_bundled_packs_unless_they_are_named(folder):
    where = folder(one=pack("one"), two=pack("two", "g"), _helper="raise AssertionError")
    assert list(load_catalog((where,)).toolpacks) == ["one", "two"]
    assert list(load_catalog((where,), ["two"]).toolpacks) == ["two"]
    assert list(load_catalog((where,), ["two", "bank", "one"]).toolpacks) == ["two", "bank", "one"]
    assert list(load_catalog((), ["bank"]).toolpacks) == ["bank"]


def test_module_may_define_several_packs_and_import_others(folder):
    where = folder(one=pack("one") + 'other = Toolpack("other")\nagain = toolpack\n')
    module = folder.file("one").rpartition("/")[2].removesuffix(".py")
    folder(two=f"from toolpacks.{module} import toolpack\n")
    assert list(load_catalog((where,)).toolpacks) == ["one", "other"]
    assert load_catalog((where,)).toolpacks["one"] is load_catalog((where,)).toolpacks["one"]


def test_unknown_pack_name_is_rejected_with_a_suggestion(folder, tmp_path):
    where = folder(one=pack("one"))
    assert problem(where, names=["nope"]).startswith("no module has a toolpack 'nope'; found: one")
    assert "pip install" not in problem(where, names=["nope"])
    assert problem(where, names=["onee"]) == "no module has a toolpack 'onee': did you mean 'one'?"
    assert problem(tmp_path / "nowhere") == f"{tmp_path}/nowhere is not a folder: correct --pack-dir."


def test_a_module_name_is_not_a_toolpack_name(folder):
    where = folder(shelf=pack("one"))
    module = Path(folder.file("shelf")).stem
    assert problem(where, names=[module]) == (
        f"no toolpack is called {module!r}: the module of this name has 'one', so use that name."
    )


def test_two_packs_with_the_same_name_are_rejected(folder):
    where = folder(one=pack("same"), two=pack("same", "g"))
    one, two = (f"{folder.file(name)}:5: Toolpack('same')" for name in ("one", "two"))
    assert problem(where) == f"{two}: the name 'same' is taken by {one}: rename one."


def test_functions_with_the_same_name_need_no_renaming(folder):
    catalog = load_catalog((folder(one=pack("one"), two=pack("two")),))
    assert catalog.choose(None) == ("one", "two")
    assert [function.name for function in catalog.listed(["one", "two"])] == ["one.f", "two.f"]


def test_ambiguous_prefixes_stop_the_start_unless_opt_in(folder):
    where = folder(one=pack("a.b"), two=pack("a__b"))
    says = "a.b.f and a__b.f have the same name in model APIs, which write a dot as __"
    assert problem(where) == f"{says}: rename one of the toolpacks, or make it opt_in."
    folder(two=pack("a__b", suffix=", opt_in=True"))
    for name in [name for name in sys.modules if name.endswith("_two") and name.startswith("toolpacks.made_")]:
        del sys.modules[name]
    catalog = load_catalog((where,))
    assert catalog.choose(None) == ("a.b",)
    assert catalog.choose(["a__b"]) == ("a__b",)
    with pytest.raises(InvalidParamsError) as refused:
        catalog.choose(["a.b", "a__b"])
    assert str(refused.value) == f"These toolpacks can't be in one session: {says}. Choose fewer."


@pytest.mark.parametrize(
    ("code", "line", "says"),
    [
        ("import nowhere_at_all\n", 5, "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("1 / 0\n", 5, "ZeroDivisionError: division by zero"),
        ("def (:\n", 5, "SyntaxError: "),
        ("raise SystemExit(3)\n", 5, "SystemExit: the module ends the program when it is imported"),
    ],
)
def test_module_with_a_failing_import_stops_the_start(folder, code, line, says):
    message = problem(folder(broken=code))
    assert message.startswith(f"{folder.file('broken')}:{line}: {says}")
    assert message.endswith(("move the file out of the folder.", "correct the name."))


def test_all_problems_are_collected(folder):
    where = folder(
        one=pack("one")
        + '@toolpack.function\ndef g():\n    pass\n\n\n@toolpack.function\ndef h(x: int):\n    """H."""\n',
        two="import nowhere_at_all\n",
        three='toolpack = Toolpack("no name!")\n',
        four="class Environment(TaskEnvironment):\n    must: int\n\n\ntoolpack = Toolpack('four', Environment)\n",
    )
    catalog, problems = inspect_toolpacks((where,))
    assert catalog is None
    message = "\n".join(map(str, problems))
    assert len(problems) == 5
    assert f"{folder.file('four')}:5: Environment: the initial environment of 'four' can't be used: " in message
    assert f"{folder.file('one')}:11: g: there is no docstring" in message
    assert f"{folder.file('one')}:16: h: parameter `x` has no default" in message
    assert f"{folder.file('three')}:5: Toolpack('no name!'): 'no name!' isn't a valid toolpack name" in message
    assert problem(where).endswith(" (4 more: see `toolpack-server check`)")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "class E(TaskEnvironment):\n    must: int\n\n\ntoolpack = Toolpack('p', E)\n",
            "must: Field required: give each",
        ),
        (
            "class E(TaskEnvironment):\n    f: object = print\n\n\ntoolpack = Toolpack('p', E)\n",
            "`f` can't be stored, its type is `builtin_function_or_method`",
        ),
        ("toolpack = Toolpack('p', dict)\n", "dict is not a pydantic model: derive it from TaskEnvironment, or use"),
        ("toolpack = Toolpack('p', 5)\n", "neither a pydantic model class nor a factory"),
        ("def make():\n    pass\n\n\ntoolpack = Toolpack('p', make)\n", "annotation is not a pydantic model class"),
        (
            (
                "class E(TaskEnvironment):\n    x: int = 1\n\n\n"
                "def make(x: int = 1) -> E:\n    return E()\n\n\ntoolpack = Toolpack('p', make)\n"
            ),
            "make: there is no docstring",
        ),
        (
            (
                "class E(TaskEnvironment):\n    pass\n\n\n"
                "def make() -> E:\n    return TaskEnvironment()\n\n\ntoolpack = Toolpack('p', make)\n"
            ),
            "built a TaskEnvironment, not the E",
        ),
        ("toolpack = Toolpack('p', state_types=[type(lambda: 0)])\n", "can't be stored in a snapshot"),
    ],
)
def test_invalid_environment_stops_the_start(folder, code, says):
    message = problem(folder(pack=code))
    assert says in message
    assert "more: see" not in message


def test_pack_without_its_optional_package_is_only_a_notice(folder):
    where = folder(one=pack("one"), two="raise ToolpackUnavailable('two needs x: pip install x')\n")
    catalog = load_catalog((where,))
    assert list(catalog.toolpacks) == ["one"]
    assert catalog.notices == ["two needs x: pip install x"]
    assert "pip install x" in problem(where, names=["two"])
    folder(three="raise ToolpackUnavailable('three needs y: pip install y')\n")
    needed = [
        ("any", ["x", "y"]),
        (f"{Path(folder.file('three')).stem}-small", ["y"]),
    ]
    for name, packages in needed:
        notice = problem(where, names=[name])
        assert [package for package in "xy" if f"pip install {package}" in notice] == packages


def test_function_can_be_registered_with_or_without_a_decorator():
    def look() -> int:
        """Look."""
        return 1

    pack = Toolpack("pack")
    assert pack.register_function(look, read_only=True, timeout_seconds=2) is look
    decorated = Toolpack("pack")
    decorated.function(read_only=True, timeout_seconds=2)(look)
    for function in (pack.functions["look"], decorated.functions["look"]):
        assert (function.read_only, function.timeout_seconds) == (True, 2)


def test_decorated_function_stays_a_plain_function():
    toolpack = Toolpack("plain")

    @toolpack.function
    def one() -> int:
        """Return 1."""
        return 1

    @toolpack.function(read_only=True, timeout_seconds=2)
    def two() -> int:
        """Return 2."""
        return 2

    assert (one(), two()) == (1, 2)
    assert [(f.name, f.read_only, f.timeout_seconds) for f in toolpack.functions.values()] == [
        ("one", False, None),
        ("two", True, 2),
    ]
    assert toolpack.environment_class is EmptyEnv


@pytest.mark.parametrize("name", ["", "with space", "é", "-x", "x" * 65, "a/b"])
def test_invalid_pack_name_is_rejected(name):
    with pytest.raises(RegistrationError, match="isn't a valid toolpack name"):
        Toolpack(name)


def test_factory_that_exits_fails_only_its_request(make_bench):
    def make(fatal: bool = False) -> EmptyEnv:
        """Make an environment.

        :param fatal: Whether to give up.
        """
        if fatal:
            raise SystemExit("gone")
        return EmptyEnv()

    bench = make_bench(Catalog({"fatal": Toolpack("fatal", make)}))
    with pytest.raises(serving.RpcError) as refused:
        bench.create("fatal", options={"fatal": {"fatal": True}})
    assert refused.value.code == -32602
    assert "SystemExit: gone" in refused.value.data["detail"]
    assert bench.create("fatal")


def test_initial_environment_is_built_once_per_options(make_bench):
    built = []

    class Counted(TaskEnvironment):
        number: int

    def make(number: int = 0) -> Counted:
        """Make an environment.

        :param number: Its number.
        """
        built.append(number)
        return Counted(number=number)

    bench = make_bench(Catalog({"counted": Toolpack("counted", make)}))
    sessions = [bench.create("counted", options={"counted": {"number": i % 2}}) for i in range(6)]
    assert sorted(built) == [0, 1]
    numbers = [bench.rpc("get_environment", session_id=s, pointer="/counted/number") for s in sessions]
    assert numbers == [0, 1] * 3


def test_dependency_reads_only_its_own_packs_environment(make_bench):
    class Thing(BaseModel):
        name: str

    def catalog():
        packs = {}
        for name in ("a", "b"):
            namespace = {"__annotations__": {"thing": Thing}, "thing": Thing(name=name)}
            names = {"__module__": __name__, "__qualname__": f"Shared{name}"}
            environment = type("Shared", (TaskEnvironment,), namespace | names)
            toolpack = packs[name] = Toolpack(name, environment)

            def read(thing: Annotated[Any, Depends("thing")]) -> str:
                """Read the thing."""
                return thing.name

            read.__name__ = f"read_{name}"
            toolpack.function(read)
        return Catalog(packs)

    bench = make_bench(catalog())
    session_id = bench.create("a", "b")
    assert [bench.result(session_id, f"read_{name}") for name in "ab"] == ["a", "b"]
