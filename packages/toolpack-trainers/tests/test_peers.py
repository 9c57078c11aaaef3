"""The versions of trainers' clients, which must be the same in pyproject.toml, in the pages and in CI."""

import re
import tomllib
from pathlib import Path

import pytest

from tools.peers import PEER_TESTS, peers

ROOT = Path(__file__).parents[3]
PINNED = dict(re.sub(r"\[.*\]", "", each).split("==") for extra in peers().values() for each in extra)
NAMED = {  # patterns of the clients' names on the page
    "openreward": r"`openreward` SDK",
    "trl": r"\bTRL",
    "openenv": r"its clients",
    "verifiers": r"\bverifiers",
    "nemo-gym": r"NeMo Gym",
    "harbor": r"Harbor",
}


def test_every_peer_has_its_name_on_the_page():
    assert PINNED.keys() == NAMED.keys()


def test_every_peer_has_a_trial():
    assert peers().keys() == PEER_TESTS.keys()


@pytest.mark.parametrize(
    "path", ["docs/train/trainers.md", "docs/train/rollouts.md", "docs/internals/develop.md", ".ci/examples"]
)
def test_commands_install_the_pinned_versions(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    for name, version in re.findall(r"([\w-]+)(?:\[\w+\])?==([\d.]*\d)", text):
        assert PINNED.get(name, version) == version, name


@pytest.mark.parametrize("name", NAMED)
def test_page_names_the_pinned_version(name):
    page = (ROOT / "docs" / "train" / "trainers.md").read_text(encoding="utf-8")
    versions = re.findall(rf"{NAMED[name]}\s+(\d+(?:\.\d+)+)", page)
    assert versions or name == "openreward"
    assert [each for each in versions if not f"{PINNED[name]}.".startswith(f"{each}.")] == []


def test_server_has_no_extra_for_peers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.match(r"[\w-]+", each)[0] for extra in project["optional-dependencies"].values() for each in extra}
    assert names.isdisjoint(PINNED)
