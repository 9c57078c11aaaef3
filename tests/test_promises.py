"""The pages' guarantees have tests: `promises.txt` names them, below the page's headings.

The list has every heading of a page, with its guarantees or the reason why there is none. So an engineer who adds a
section, changes a guarantee or renames a test must update the other two.
"""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
STORE_CONTRACT = ROOT / "server" / "toolpack_server" / "testing" / "store_contract"
LIST = (TESTS / "promises.txt").read_text(encoding="utf-8")
PAGES = [
    *(f"docs/operate/{name}.md" for name in ("deploy", "operate", "settings", "isolation")),
    *("SECURITY.md", "docs/reference/protocol.md"),
]
LEAST = 30  # number of characters of a sentence in the list, unless it is shorter


class Guarantee(NamedTuple):
    """The beginning of a sentence, and the tests of its promise."""

    beginning: str
    tests: list[str]


def list_of(page):
    """Return the list of a page: for each heading the guarantees, or the reason why there is none."""
    section = re.search(rf"^## {re.escape(page)}\n(.*?)(?=^## |\Z)", LIST, re.MULTILINE | re.DOTALL)[1]
    entries = {}
    for heading, below in re.findall(r"^### (.*)\n((?:(?!### ).*\n?)*)", section, re.MULTILINE):
        why = re.fullmatch(r"\s*- (.+)\s*", below)
        groups = re.findall(r"((?:^\S.*\n)+)((?:^ +\S.*\n?)+)", below, re.MULTILINE)
        guarantees = [Guarantee(line, tests.split()) for lines, tests in groups for line in lines.splitlines()]
        entries[heading] = why[1] if why else guarantees
    return entries


def sections(text):
    """Return the paragraphs, list entries and table cells below each heading of a page, each as one line."""
    text = re.sub(r"^ *```.*?^ *```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    paragraphs = {}
    for line in map(str.strip, text.splitlines()):
        if line.startswith("#"):
            blocks = paragraphs[line.lstrip("# ")] = [""]
        elif line.startswith("|"):
            blocks += [cell.strip() for cell in line.strip("|").split(" | ")]
        elif not line or line.startswith("- "):
            blocks.append(line.removeprefix("- "))
        else:
            blocks[-1] += f" {line}"
    return paragraphs


def sentences(blocks):
    return [each for block in blocks for each in re.split(r"(?<=[.!?])\)?\s+(?=[A-Z`*\[_])", block.strip()) if each]


def differences(text, of_page):
    """Yield the entries that only the page or only the list has."""
    on_page = sections(text)
    if [*on_page] != [*of_page]:
        yield f"the headings are {[*on_page]}, in the list {[*of_page]}"
    for heading, guarantees in of_page.items():
        rest = sentences(on_page.get(heading, []))
        for beginning, _ in [] if isinstance(guarantees, str) else guarantees:
            at = next((position for position, each in enumerate(rest) if each.startswith(beginning)), None)
            if at is None:
                yield f"not below {heading}, or elsewhere: {beginning}"
                continue
            if len(beginning) < min(LEAST, len(rest[at])):
                yield f"too little of it is in the list: {rest[at]}"
            del rest[: at + 1]


@functools.cache
def names_in(file):
    """Return the names of the tests in a file; names of files are unique."""
    (path,) = [*TESTS.rglob(file), *STORE_CONTRACT.glob(file)]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES)
def test_every_heading_and_guarantee_is_listed_verbatim(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [*differences(text, list_of(page))] == [], f"correct the list of {page} in tests/promises.txt"


def test_every_test_in_the_list_exists():
    named = [
        test.partition("::")
        for page in PAGES
        for guarantees in list_of(page).values()
        for each in ([] if isinstance(guarantees, str) else guarantees)
        for test in each.tests
    ]
    assert len(named) > 150
    assert [f"{file}::{name}" for file, _, name in named if name not in names_in(file)] == []


@pytest.mark.parametrize("page", PAGES)
def test_added_headings_and_moved_guarantees_are_noticed(page):
    text, of_page = (ROOT / page).read_text(encoding="utf-8"), list_of(page)
    assert len([*differences(f"{text}\n## Another\n\nAnd nobody waits.\n", of_page)]) == 1
    heading, (one, other, *others) = next(
        (heading, each) for heading, each in of_page.items() if not isinstance(each, str) and len(each) > 1
    )
    removed = Guarantee("This is said on no page, and no caller waits.", one.tests)
    for changed in ([removed, other, *others], [other, one, *others]):
        assert len([*differences(text, of_page | {heading: changed})]) == 1


def test_all_pages_are_listed_and_no_heading_is_empty():
    assert re.findall(r"^## (.*)", LIST, re.MULTILINE) == PAGES
    assert [heading for page in PAGES for heading, each in list_of(page).items() if not each] == []
