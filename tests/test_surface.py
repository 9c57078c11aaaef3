"""The check for breaks of the public surface: a break must be in CHANGELOG.md, and an addition isn't a break."""

import copy
import json
import types
from typing import Any, Literal, NotRequired

import click
import pytest
from click.testing import CliRunner
from pydantic import Field, create_model
from typing_extensions import TypedDict, Unpack

from toolpack_server.base.settings import _FromEnvironment
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_methods, openrpc
from tools import surface
from tools.surface import Surface, Thing, breaks, breaks_in_changelog

DOCUMENT = openrpc(all_methods(load_features()), load_features())


def protocol(document=DOCUMENT):
    surface = Surface()
    surface.add_methods(document)
    return surface


def changed(change):
    """Return the breaks of a change of the OpenRPC document."""
    document = copy.deepcopy(DOCUMENT)
    methods = {method["name"]: method for method in document["methods"]}
    change(document, methods)
    return set(breaks(protocol(), protocol(document)))


def parameter(methods, method, name):
    return next(each for each in methods[method]["params"] if each["name"] == name)


def schema(document, name):
    return document["components"]["schemas"][name]


def test_nothing_is_broken_without_a_change():
    assert changed(lambda _document, _methods: None) == set()


def test_a_removed_method_is_a_break_named_once():
    assert changed(lambda document, methods: document["methods"].remove(methods["diff_environment"])) == {
        ("diff_environment", "is gone")
    }


def test_a_renamed_parameter_is_a_break():
    broken = changed(lambda _, methods: parameter(methods, "run_function", "kwargs").update(name="arguments"))
    assert ("run_function(kwargs)", "is gone") in broken


def test_only_a_required_new_parameter_is_a_break():
    def add(methods, *, required):
        methods["run_function"]["params"].append({"name": "why", "required": required, "schema": {"type": "string"}})

    assert changed(lambda _, methods: add(methods, required=True)) == {("run_function", "now: needs why")}
    assert changed(lambda _, methods: add(methods, required=False)) == set()


def test_parameters_in_another_order_are_a_break():
    broken = changed(lambda _, methods: methods["get_trace"]["params"].reverse())
    assert ("get_trace(session_id)", "no longer: by position, at 1") in broken


def test_only_a_removed_choice_is_a_break():
    def choices(methods):
        return parameter(methods, "list_functions", "format")["schema"]["enum"]

    removed = {("list_functions(format)", 'no longer: may be "gemini"')}
    assert changed(lambda _, methods: choices(methods).remove("gemini")) == removed
    assert changed(lambda _, methods: choices(methods).append("ollama")) == set()


def test_a_changed_default_is_a_break():
    broken = changed(lambda _, methods: parameter(methods, "get_trace", "limit")["schema"].update(default=50))
    assert broken == {("get_trace(limit)", "no longer: default 100")}


def test_only_a_narrower_limit_is_a_break():
    def limit(**limits):
        return changed(lambda _, methods: parameter(methods, "get_trace", "limit")["schema"].update(limits))

    assert limit(maximum=10) == {("get_trace(limit)", "now: maximum 10")}
    assert limit(minimum=5) == {("get_trace(limit)", "now: minimum 5")}
    assert limit(multipleOf=5) == set()
    assert limit(maximum=10**9) == set()


def test_only_fewer_types_of_a_parameter_are_a_break():
    def choices(methods):
        return parameter(methods, "run_function", "kwargs")["schema"]["anyOf"]

    without_text = changed(lambda _, methods: choices(methods).remove({"type": "string"}))
    assert without_text == {("run_function(kwargs)", "no longer: may be of type string")}
    assert changed(lambda _, methods: choices(methods).append({"type": "null"})) == set()


def test_only_a_removed_member_of_a_result_is_a_break():
    def remove(document, _methods):
        del schema(document, "SessionSummary")["properties"]["calls"]

    def add(document, _methods):
        schema(document, "SessionSummary")["properties"]["colour"] = {"type": "string"}
        schema(document, "SessionSummary")["required"].append("colour")

    assert changed(remove) == {("SessionSummary.calls", "is gone")}
    assert changed(add) == set()


def test_a_member_that_becomes_optional_or_null_is_a_break():
    def may_be_missing(document, _methods):
        schema(document, "SessionSummary")["required"].remove("calls")

    def may_be_null(document, _methods):
        calls = schema(document, "SessionSummary")["properties"]["calls"]
        calls["anyOf"] = [{"type": calls.pop("type")}, {"type": "null"}]

    assert changed(may_be_missing) == {("SessionSummary.calls", "no longer: always there")}
    assert changed(may_be_null) == {("SessionSummary.calls", "now: may be of type null")}


def test_a_removed_kind_of_record_is_a_break():
    assert ("MessageRecord", "is gone") in changed(
        lambda document, _: document.update(json.loads(json.dumps(document).replace("MessageRecord", "NoteRecord")))
    )


def python(**names):
    """Return the description of a module that has these names."""
    module = types.ModuleType("described")
    vars(module).update(names, __all__=[*names])
    surface = Surface()
    surface.add_objects("toolpack_server", module)
    return surface


class Options(TypedDict):
    colour: NotRequired[str]


class MoreOptions(Options):
    size: NotRequired[int]


class LessOptions(TypedDict):
    pass


def plain(name: str, size: int = 1) -> str: ...
def without_a_parameter(name: str) -> str: ...
def with_a_required_one(name: str, size: int = 1, *, colour: str) -> str: ...
def with_an_optional_one(name: str, size: int = 1, *, colour: str = "") -> str: ...
def with_another_default(name: str, size: int = 2) -> str: ...
def with_a_name_only(name: str, *, size: int = 1) -> str: ...
def with_a_required_size(name: str, size: int) -> str: ...
def in_another_order(size: int = 1, name: str = "") -> str: ...
def that_returns_another_type(name: str, size: int = 1) -> str | None: ...
async def awaited(name: str, size: int = 1) -> str: ...
def with_options(**options: Unpack[Options]) -> None: ...
def with_more_options(**options: Unpack[MoreOptions]) -> None: ...
def with_less_options(**options: Unpack[LessOptions]) -> None: ...


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (plain, without_a_parameter, {("toolpack_server.it(size)", "is gone")}),
        (plain, with_a_required_one, {("toolpack_server.it", "now: needs colour")}),
        (plain, with_an_optional_one, set()),
        (plain, with_another_default, {("toolpack_server.it(size)", "no longer: default 1")}),
        (plain, with_a_name_only, {("toolpack_server.it(size)", "no longer: by position, at 2")}),
        (
            plain,
            with_a_required_size,
            {("toolpack_server.it", "now: needs size"), ("toolpack_server.it(size)", "no longer: default 1")},
        ),
        (
            plain,
            in_another_order,
            {
                ("toolpack_server.it(name)", "no longer: by position, at 1"),
                ("toolpack_server.it(size)", "no longer: by position, at 2"),
            },
        ),
        (plain, that_returns_another_type, {("toolpack_server.it", "no longer: returns str")}),
        (awaited, plain, {("toolpack_server.it", "no longer: is awaited")}),
        (with_options, with_more_options, set()),
        (with_options, with_less_options, {("toolpack_server.it(colour)", "is gone")}),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_breaks_of_signatures(before, now, expected):
    assert set(breaks(python(it=before), python(it=now))) == expected


def test_an_attribute_may_move_to_a_base_class():
    class Base:
        """Base.

        Attributes:
            size: How large it is.
        """

        __module__ = "toolpack_server.base"
        size: int

    class Whole(Base):
        __doc__ = Base.__doc__
        __module__ = "toolpack_server.base"

    class Divided(Base):
        """Divided."""

        __module__ = "toolpack_server.base"

    assert [*breaks(python(It=Whole), python(It=Divided))] == []
    assert {name for name, _ in breaks(python(It=Divided), python(It=object))} == {"toolpack_server.It.size"}


def test_only_removed_names_and_attributes_are_breaks():
    class BaseError(ValueError):
        __module__ = "toolpack_server.base.errors"

        def close(self) -> None: ...

    class KnownError(BaseError):
        """Known.

        Attributes:
            size: How large it is.
        """

        __module__ = "toolpack_server.base.errors"

        @property
        def colour(self) -> str: ...

    class OtherError(RuntimeError):
        __module__ = "toolpack_server.base.errors"

    broken = set(breaks(python(It=KnownError, other=plain), python(It=OtherError)))
    assert {name for name, _ in broken} == {
        "toolpack_server.It",
        "toolpack_server.It.close",
        "toolpack_server.It.colour",
        "toolpack_server.It.size",
        "toolpack_server.other",
    }
    assert ("toolpack_server.It", "no longer: is a ValueError") in broken
    assert set(breaks(python(It=BaseError), python(It=KnownError, other=plain))) == set()


def settings(**fields):
    surface = Surface()
    surface.add_settings(create_model("Some", __base__=_FromEnvironment, **fields))
    return surface


def test_breaks_of_settings():
    before = settings(port=(int, Field(8000, le=9000)), log=(Literal["json", "text"], "json"))
    now = settings(port=(int, Field(8001, le=8500)), log=(Literal["json"], "json"), colour=(str, ""))
    assert set(breaks(before, now)) == {
        ("TOOLPACK_PORT", "no longer: default 8000"),
        ("TOOLPACK_PORT", "now: maximum 8500"),
        ("TOOLPACK_LOG", 'no longer: may be "text"'),
    }
    assert set(breaks(now, before)) > {("TOOLPACK_COLOUR", "is gone")}


def test_breaks_of_commands():
    def described(*parameters):
        surface = Surface()
        surface.add_command("tool", click.Group("tool", commands=[click.Command("run", params=[*parameters])]))
        return surface

    url, quiet = click.Option(["--url"]), click.Option(["--quiet/--loud"])
    before = described(url, quiet, click.Argument(["name"], required=False))
    assert set(breaks(before, described(url, quiet, click.Argument(["name"])))) == {("tool run", "now: needs NAME")}
    without = described(click.Option(["--url"], is_flag=True), click.Argument(["name"], required=False))
    assert set(breaks(before, without)) == {
        ("tool run --url", "no longer: takes a value"),
        ("tool run --quiet", "is gone"),
        ("tool run --loud", "is gone"),
    }
    assert set(breaks(described(url), before)) == set()


def test_breaks_of_metrics_formats_and_errors(monkeypatch):
    def described():
        broken = Surface()
        broken.add_metrics()
        broken.add_formats()
        broken.add_errors()
        return broken

    before = described()
    assert {"toolpack_calls_total", "toolpack_sessions", "toolpack_executors", "-32005"} <= before.keys()
    monkeypatch.setattr(surface, "SQLITE", 2)
    monkeypatch.setattr(surface, "OK", "fine")
    monkeypatch.setattr(surface, "CODES", {})
    broken = set(breaks(before, described()))
    assert ("format of SQLite stores", "no longer: is 1") in broken
    assert ("toolpack_calls_total", 'no longer: outcome="ok"') in broken
    assert ("-32005", "is gone") in broken
    monkeypatch.setattr(surface, "exposition", lambda *_: b"")
    assert ("toolpack_calls_total", "is gone") in set(breaks(before, described()))


CHANGES = """# Changelog

## Unreleased

- `create_session` is quicker.

### Breaking

- `get_trace` is gone: use
  `list_records`.
- `toolpack-server serve
  --port`: its default.

### Other

- `TOOLPACK_PORT` is read.

## 0.1.0

### Breaking

- `run_function(kwargs)`: everything.
"""


def test_entries_come_from_breaking_in_unreleased():
    assert breaks_in_changelog(CHANGES) == [
        "`get_trace` is gone: use `list_records`.",
        "`toolpack-server serve --port`: its default.",
    ]
    assert breaks_in_changelog("# Changelog\n\n## Unreleased\n\n- `a`\n") == []


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write files of a project. Its last release had three names, and two of them are removed now."""
    for name in ("RELEASED", "CHANGELOG", "PROJECT"):
        monkeypatch.setattr(surface, name, tmp_path / name)
    surface.PROJECT.write_text('[project]\nname = "x"\nversion = "0.1.0"\n')
    monkeypatch.setattr(surface, "PACKAGES", [tmp_path / "PACKAGE"])
    surface.PACKAGES[0].write_text('version = "0.1.0"\ndependencies = ["click>=8.1", "toolpack-server==0.1.0"]\n')
    surface.CHANGELOG.write_text(CHANGES)
    surface.write_released(
        "0.1.0", Surface({name: Thing() for name in ("get_trace", "TOOLPACK_PORT", "toolpack_sessions")})
    )
    monkeypatch.setattr(surface, "describe", lambda: Surface(toolpack_sessions=Thing({"is a gauge"})))
    return surface


def run(*arguments: Any):
    return CliRunner().invoke(surface.main, [*arguments])


def test_a_break_missing_in_the_changelog_fails_with_its_name(files):
    result = run()
    assert result.exit_code == 1
    assert "`TOOLPACK_PORT` is gone\n" in result.output
    assert "get_trace" not in result.output
    assert "CHANGELOG.md lacks 1 break since 0.1.0" in result.output
    files.CHANGELOG.write_text(CHANGES.replace("### Other\n\n", ""))
    assert run().exit_code == 0


def test_a_release_keeps_the_surface_and_begins_a_new_section(files):
    assert run("--release", "0.2.0").exit_code == 1
    assert '"0.1.0"' in files.PROJECT.read_text()
    files.CHANGELOG.write_text(CHANGES.replace("### Other\n\n", ""))
    assert run("--release", "0.2.0").exit_code == 0
    assert 'version = "0.2.0"\n' in files.PROJECT.read_text()
    package = files.PACKAGES[0].read_text()
    assert package == 'version = "0.2.0"\ndependencies = ["click>=8.1", "toolpack-server==0.2.0"]\n'
    assert "## Unreleased\n\n## 0.2.0\n\n- `create_session` is quicker." in files.CHANGELOG.read_text()
    stored_surface = json.loads(files.RELEASED.read_text())
    assert stored_surface == {"version": "0.2.0", "surface": {"toolpack_sessions": {"gives": ["is a gauge"]}}}
    assert run().output == "1 thing, 0 breaks since 0.2.0.\n"


def test_a_release_made_again_replaces_its_own_surface(files):
    for _ in range(2):
        assert run("--release", "0.1.0").output == "1 thing, stored as the surface of 0.1.0.\n"
        assert files.CHANGELOG.read_text().count("## 0.1.0\n") == 1
    assert run().output == "1 thing, 0 breaks since 0.1.0.\n"
