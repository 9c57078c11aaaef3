"""The schemas in the repository match the code, and functions are described in the format of each model API."""

import json
import re
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypedDict

import jsonschema
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from toolpack_server import Toolpack
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.formats import FORMATS, returns_schema, without_repeated_titles
from toolpack_server.packs.openai_schema import openai_schema
from tools.schemas import schemas as write_schemas

SCHEMAS = Path(__file__).parents[2] / "schemas"


def schemas(*arguments):
    return CliRunner().invoke(write_schemas, [*map(str, arguments)])


def test_schemas_in_the_repository_match_the_code():
    result = schemas("--check", "--directory", SCHEMAS)
    assert result.exit_code == 0, result.output


def test_check_lists_outdated_schemas_and_writing_updates_them(tmp_path):
    assert schemas("--directory", tmp_path).exit_code == 0
    assert schemas("--check", "--directory", tmp_path).exit_code == 0
    (tmp_path / "envelope.json").write_text("{}")
    (tmp_path / "toolpacks" / "bank.json").unlink()
    drifted = schemas("--check", "--directory", tmp_path)
    assert drifted.exit_code != 0
    assert "envelope.json, toolpacks/bank.json drifted" in drifted.output
    assert (tmp_path / "envelope.json").read_text() == "{}"
    assert schemas("--directory", tmp_path).exit_code == 0
    assert schemas("--check", "--directory", tmp_path).exit_code == 0


def every_schema(document):
    if isinstance(document, dict):
        if "$schema" in document or {"type", "properties"} <= set(document):
            yield document
        for part in document.values():
            yield from every_schema(part)
    if isinstance(document, list):
        for part in document:
            yield from every_schema(part)


def test_schemas_in_the_repository_are_valid():
    count = 0
    for path in SCHEMAS.rglob("*.json"):
        for schema in every_schema(json.loads(path.read_text(encoding="utf-8"))):
            jsonschema.Draft202012Validator.check_schema(schema)
            count += 1
    assert count > 50


def test_envelopes_and_sessions_match_their_schemas(bench):
    envelope_schema = json.loads((SCHEMAS / "envelope.json").read_text(encoding="utf-8"))
    document = bench.rpc("rpc.discover")
    results = {method["name"]: method["result"]["schema"] for method in document["methods"]}

    def is_valid(method, result):
        schema = {**results[method], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(result)
        return result

    session_id = is_valid("create_session", bench.rpc("create_session", toolpacks=["ledger"]))["session_id"]
    for kwargs in ({"amount": 1}, {"amount": "x"}):
        envelope = is_valid("run_function", bench.call(session_id, "add", **kwargs))
        jsonschema.Draft202012Validator(envelope_schema).validate(envelope)
    bench.rpc("reset_session", session_id=session_id)
    is_valid("fork_session", bench.rpc("fork_session", session_id=session_id))
    for method in (
        "get_session",
        "get_trace",
        "get_environment",
        "diff_environment",
        "list_functions",
    ):
        is_valid(method, bench.rpc(method, session_id=session_id))
    is_valid("get_environment", bench.rpc("get_environment", session_id=session_id, format="snapshot"))
    is_valid("list_sessions", bench.rpc("list_sessions"))
    for how in FORMATS:
        is_valid("list_functions", bench.rpc("list_functions", format=how))


def test_native_format_keeps_the_order_of_registration(bench):
    session_id = bench.create("vault", "ledger")
    envelope = bench.rpc("list_functions", session_id=session_id)
    assert envelope["error"] is None
    names = [function["name"] for function in envelope["result"]]
    assert names[:5] == ["take_gold", "get_log", "read_seal", "store_list", "add"]
    assert envelope["result"][0] == {
        "name": "take_gold",
        "description": "Take gold out.",
        "parameters": {
            "additionalProperties": False,
            "properties": {"amount": {"description": "The amount of gold.", "title": "Amount", "type": "integer"}},
            "required": ["amount"],
            "title": "Input schema for `take_gold`",
            "type": "object",
        },
        "returns": {"type": "integer"},
        "toolpack": "vault",
        "read_only": False,
    }
    assert envelope["result"][1]["read_only"] is True
    assert envelope["result"][1]["returns"] == {"items": {"type": "string"}, "type": "array"}


def test_list_functions_without_a_session_lists_all_functions(bench):
    functions = bench.rpc("list_functions")["result"]
    assert {function["toolpack"] for function in functions} == {"ledger", "vault", "nasty", "halves"}


def test_formats_differ_only_in_structure(bench):
    session_id = bench.create("ledger")
    native = {f["name"]: f for f in bench.rpc("list_functions", session_id=session_id)["result"]}

    def descriptions(how):
        return bench.rpc("list_functions", session_id=session_id, format=how)["result"]

    for how, key in (("anthropic", "input_schema"), ("gemini", "parametersJsonSchema")):
        assert descriptions(how) == [
            {"name": f["name"], "description": f["description"], key: f["parameters"]} for f in native.values()
        ]
    assert descriptions("openai") == [
        {
            "type": "function",
            "function": {
                "name": f["name"],
                "description": f["description"],
                "parameters": openai_schema(f["parameters"]),
            },
        }
        for f in native.values()
    ]
    assert descriptions("mcp") == [
        {
            "name": function["name"],
            "description": function["description"],
            "inputSchema": without_repeated_titles(function["parameters"]),
            "annotations": {"readOnlyHint": function["read_only"], "openWorldHint": False},
        }
        for function in native.values()
    ]


def test_published_schemas_lack_titles_that_repeat_a_name():
    schema = {
        "title": "Input schema for `file`",
        "properties": {
            "due_by": {"title": "Due By", "type": "string", "default": {"title": "Due By"}},
            "title": {"title": "Title", "anyOf": [{"title": "Title", "type": "string"}, {"type": "null"}]},
            "tags": {"title": "Labels", "items": {"$ref": "#/$defs/Tag"}},
        },
        "$defs": {"Tag": {"title": "Tag", "properties": {"name": {"title": "Name of the tag"}}}},
    }
    assert without_repeated_titles(schema) == {
        "properties": {
            "due_by": {"type": "string", "default": {"title": "Due By"}},
            "title": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"title": "Labels", "items": {"$ref": "#/$defs/Tag"}},
        },
        "$defs": {"Tag": {"properties": {"name": {"title": "Name of the tag"}}}},
    }


class Speaker(Protocol):
    def speak(self): ...


class Shape(TypedDict):
    side: int


class Refuses:
    @classmethod
    def __get_pydantic_core_schema__(cls, _source, _handler):
        raise RuntimeError("no schema of me")


class Anything(BaseModel):
    value: Any = None


RETURNS = [None, int, Any, Shape, Anything, list[Anything], object, type, type[int], Speaker, Refuses, ClassVar[int],
           Final[int], "Unknown", lambda: 0, {"a": 1}, print]  # fmt: skip


@pytest.mark.parametrize("annotation", RETURNS, ids=lambda annotation: re.sub(" at 0x.*", "", str(annotation)))
def test_function_with_any_return_annotation_is_listed(annotation, make_bench):
    pack = Toolpack("odd")

    @pack.function
    def odd() -> None:
        """Return something odd."""

    function = pack.functions["odd"]
    function.function.return_type = annotation
    schema = returns_schema(function)
    assert schema is None or json.dumps(schema)
    bench = make_bench(Catalog({"odd": pack}))
    assert len(bench.rpc("list_functions", format="mcp")["result"]) == 1
