"""Arguments of the command `call`: the function's schema decides how they are parsed."""

from datetime import date
from enum import StrEnum
from typing import Any, Literal

import pytest
from command_line import invoke

from toolpack_server.cli.call import values
from toolpack_server.functions.signatures import parameters_model


class Size(StrEnum):
    ONE = "1"


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (str, "5", "5"),
        (str, "true", "true"),
        (str, "null", "null"),
        (str, "[1]", "[1]"),
        (str, '"5"', "5"),
        (str | None, "5", "5"),
        (str | None, "null", None),
        (date, "2026", "2026"),
        (Size, "1", "1"),
        (Literal["1", "2"], "1", "1"),
        (int, "5", 5),
        (int | str, "5", 5),
        (list[str], '["5"]', ["5"]),
        (Any, "5", 5),
        (Any | None, "5", 5),
    ],
)
def test_text_parameter_gets_the_text_unchanged(annotation, text, value):
    schema = parameters_model("f", {"x": (annotation, ...)}).model_json_schema()
    assert values({"x": text}, schema) == {"x": value}


def test_call_sends_numbers_as_text_to_text_parameters(tmp_path):
    (tmp_path / "words.py").write_text(
        "from toolpack_server import EmptyEnv, Toolpack\n\n\n"
        "class Words(EmptyEnv):\n    first: str\n\n\n"
        'def start(first: str = "a") -> Words:\n'
        '    """Start.\n\n    :param first: Word.\n    """\n    return Words(first=first)\n\n\n'
        'toolpack = Toolpack("words", start)\n\n\n'
        "@toolpack.function\n"
        'def append(word: str) -> str:\n    """Append.\n\n    :param word: Word.\n    """\n    return word + "!"\n'
    )
    words = [
        "call",
        "--pack-dir",
        str(tmp_path),
        "--option",
        "words.first=7",
        "append",
        "word=5",
        "--",
        "append",
        "word=x",
    ]
    result = invoke(*words)
    assert (result.exit_code, result.output) == (0, '"5!"\n"x!"\n')
