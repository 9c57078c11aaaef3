"""Marks of parameters that clients of MCP send as headers: a wrong one stops the start, as clients drop its tool."""

import pytest

from toolpack_server.base.errors import RegistrationError
from toolpack_server.features.protocols.mcp.marks import header_parameters


def marked(kind="string", header="Region"):
    return {"type": kind, "x-mcp-header": header}


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"a": marked("number")}, "parameter `a`: x-mcp-header needs a string, an integer or a boolean"),
        ({"a": marked(["string", "null"])}, "parameter `a`: x-mcp-header needs a string"),
        ({"a": {"x-mcp-header": "Region"}}, "parameter `a`: x-mcp-header needs a string"),
        ({"a": {"anyOf": [marked(), {"type": "null"}]}}, "below anyOf, as in `str | None`, where MCP allows none"),
        ({"a": {"type": "array", "items": marked()}}, "is in a nested model or below anyOf"),
        ({"a": marked(header="")}, "parameter `a`: x-mcp-header = '' isn't the name of a header"),
        ({"a": marked(header="Two words")}, "x-mcp-header = 'Two words' isn't the name of a header"),
        ({"a": marked(header=3)}, "x-mcp-header = 3 isn't the name of a header"),
        ({"a": marked(), "b": marked(header="REGION")}, "x-mcp-header = 'REGION' is given to two parameters"),
    ],
)
def test_a_mark_that_mcp_does_not_allow_is_refused(properties, sentence):
    with pytest.raises(RegistrationError) as error:
        header_parameters({"type": "object", "properties": properties})
    assert sentence in str(error.value)


def test_marks_are_found_wherever_only_properties_lead():
    place = {"type": "object", "properties": {"region": marked(), "note": {"type": "string", "default": marked()}}}
    assert header_parameters({"properties": {"place": place, "dry": marked("boolean", "Dry")}}) == {
        ("place", "region"): "Region",
        ("dry",): "Dry",
    }
