"""What the pages for operators promise has a test beside it: `promises.txt` names it, sentence by sentence.

The rule: every sentence of a page, and every cell of its tables, is in the list, in its order; code blocks aren't. So
whoever adds a sentence has to name the tests of what it promises, or to say that it promises nothing.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LIST = (TESTS / "promises.txt").read_text(encoding="utf-8")
PAGES = ["docs/operate.md", "docs/isolation.md", "SECURITY.md"]
LEAST = 40  # characters of a sentence that the list has, unless it is shorter


class Listed(NamedTuple):
    """The beginning of a sentence, and the tests of what it promises; or why it promises nothing."""

    beginning: str
    tests: list[str]
    why: str


def listed(page):
    """Get what is listed of a page, in order."""
    section = re.search(rf"^## {re.escape(page)}\n(.*?)(?=^## |\Z)", LIST, re.MULTILINE | re.DOTALL)[1]
    found = []
    for group in re.findall(r"((?:^\S.*\n)+)((?:^ +\S.*\n)+)", section, re.MULTILINE):
        beginnings, below = ([line.strip() for line in each.splitlines()] for each in group)
        why = below[0].removeprefix("- ") if below[0].startswith("- ") else ""
        found += [Listed(beginning, [] if why else below, why) for beginning in beginnings]
    return found


def blocks(text):
    """Get the paragraphs, list entries and rows of tables of a page, each in one line."""
    text = re.sub(r"^ *```.*?^ *```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    lines = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("|") and set(line) <= set("|-: "):
            continue
        starts = line.startswith(("- ", "|"))
        if line.startswith("#") or not line:
            lines.append("")
        elif starts or not lines or not lines[-1] or lines[-1].startswith("|"):
            lines.append(line.removeprefix("- "))
        else:
            lines[-1] += f" {line}"
    return [line for line in lines if line]


def sentences(text):
    """Get the sentences of a page, and the cells of its tables; of a setting only the name: `test_docs` has the row."""
    for block in blocks(text):
        if block.startswith("|"):
            cells = [cell.strip() for cell in block.strip("|").split(" | ")]
            yield from cells[:1] if cells[0].startswith("`TOOLPACK_") else filter(None, cells)
        else:
            yield from re.split(r"(?<=[.!?])\)?\s+(?=[A-Z`*\[_])", block)


def differences(text, of_page):
    """Yield what a page has and the list hasn't, and the other way round."""
    rest = list(of_page)
    for sentence in sentences(text):
        at = next((place for place, each in enumerate(rest) if sentence.startswith(each.beginning)), None)
        if at is None:
            yield f"not in the list: {sentence}"
            continue
        yield from (f"not on the page, or elsewhere: {each.beginning}" for each in rest[:at])
        if len(rest[at].beginning) < min(LEAST, len(sentence)):
            yield f"too little of it is in the list: {sentence}"
        del rest[: at + 1]
    yield from (f"not on the page: {each.beginning}" for each in rest)


@functools.cache
def names_in(file):
    """Get the names of the tests in a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_is_listed(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [*differences(text, listed(page))] == [], f"correct the list of {page} in tests/promises.txt"


@pytest.mark.parametrize("page", PAGES)
def test_every_test_in_the_list_exists(page):
    named = [test.partition("::") for each in listed(page) for test in each.tests]
    assert [f"{file}::{name}" for file, _, name in named if name not in names_in(file)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_sentence_more_or_less_or_elsewhere_is_noticed(page):
    text, of_page = (ROOT / page).read_text(encoding="utf-8"), listed(page)
    assert [*differences(text + "\nAnd nobody waits.\n", of_page)] == ["not in the list: And nobody waits."]
    assert len([*differences(text, of_page[1:])]) == 1
    gone = text.replace(blocks(text)[-1].split(". ")[0].split(" ")[0], "Otherwise,")
    assert [*differences(gone, of_page)]
    swapped = [of_page[1], of_page[0], *of_page[2:]]
    assert [*differences(text, swapped)]


def test_all_pages_are_listed_and_most_promise_something():
    assert re.findall(r"^## (.*)", LIST, re.MULTILINE) == PAGES
    every = [each for page in PAGES for each in listed(page)]
    assert all(each.why or each.tests for each in every)
    assert sum(bool(each.tests) for each in every) > len(every) / 2
