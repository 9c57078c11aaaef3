"""Parser for docstrings, which returns the descriptions of functions and parameters that agents see.

The descriptions equal those in AgentDojo, so they leave out sections such as Returns. The command `check` lists the
omitted sections, because an author might expect agents to see them.
"""

import re
from collections.abc import Sequence

import docstring_parser
from docstring_parser.common import (
    DEPRECATION_KEYWORDS,
    EXAMPLES_KEYWORDS,
    PARAM_KEYWORDS,
    RAISES_KEYWORDS,
    RETURNS_KEYWORDS,
    YIELDS_KEYWORDS,
    Docstring,
    DocstringParam,
)

_FIELDS = {
    *(PARAM_KEYWORDS | RAISES_KEYWORDS | RETURNS_KEYWORDS | YIELDS_KEYWORDS | DEPRECATION_KEYWORDS | EXAMPLES_KEYWORDS),
    *("type", "rtype", "var", "ivar", "cvar", "vartype", "meta"),
}
# The parser interprets each line that begins with a colon as a Sphinx field. To prevent this for other lines, the
# regular expression finds them, and `parse_docstring` inserts a mark before their colons.
_TEXT_LINE = re.compile(rf"^([ \t]*)(?=:(?!(?:{'|'.join(sorted(_FIELDS))})\b[^:\n]*:))", re.MULTILINE)
_MARK = "\N{WORD JOINER}"
_NONE = re.compile(r"\bNone\b(?! (?:of|are|were)\b)")


def parse_docstring(text: str) -> Docstring:
    """Parse a docstring of any style. A line that begins with a colon is text, unless it begins with a known field."""
    docs = docstring_parser.parse(_TEXT_LINE.sub(rf"\1{_MARK}", text))
    for part in (docs, *docs.meta):
        for name, value in vars(part).items():
            if isinstance(value, str):
                setattr(part, name, value.replace(_MARK, ""))
    return docs


def description(docs: Docstring) -> str:
    """Return the description that agents see: the short and the long description, with None written as null."""
    return _NONE.sub("null", "\n".join(filter(None, [docs.short_description, docs.long_description])))


def parameter_descriptions(params: Sequence[DocstringParam]) -> dict[str, str]:
    """Return the description of each documented parameter. It is "" for a parameter without text."""
    # NumPy style can document several parameters in one entry: `x, y : float`.
    return {name.strip(): param.description or "" for param in params for name in param.arg_name.split(",")}


def hidden_sections(text: str) -> list[str]:
    """Return the names of a docstring's sections that agents don't see, such as Returns."""
    try:
        docs = parse_docstring(text)
    except docstring_parser.ParseError:
        return []
    names = [part.args[0].capitalize() for part in docs.meta if not isinstance(part, DocstringParam) and part.args]
    return [*dict.fromkeys(names)]
