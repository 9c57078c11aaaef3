"""The distributions in packages/: what they import of the server, and that no served process imports them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from toolpack_server.features.authoring import trials as api_trials

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ROOT.glob("packages/*/toolpack_*") for path in folder.rglob("*.py")]
SEAM = {f"toolpack_server.features.{name}" for name in ("api", "api_http", "api_commands", "api_trials", "api_volumes")}
MOST_TRIED = 71  # names in `api_trials`: a tool needs less of the core, not more


def imported(path):
    """The modules that a file imports from, each with the names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module, {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            yield from ((alias.name, set()) for alias in node.names)


def test_packages_know_of_the_server_what_features_may_and_its_client():
    found = {module for path in FILES for module, _ in imported(path) if module.partition(".")[0] == "server"}
    assert found <= SEAM
    assert found & SEAM


def test_what_tools_may_import_besides_is_used_by_one_and_only_becomes_less():
    used = {name for path in FILES for module, names in imported(path) for name in names if "api_trials" in module}
    assert {name for _, names in imported(Path(api_trials.__file__)) for name in names} == used
    assert len(used) <= MOST_TRIED


@pytest.mark.parametrize("command", ["serve", "mcp", "features", "list", "session"])
def test_no_process_that_serves_imports_what_only_authors_run(command):
    program = (
        "import sys; from toolpack_server.cli import cli; "
        f"cli.get_command(None, {command!r}); "
        "import toolpack_server.web.app, toolpack_server.wiring.service, toolpack_server.features.executors.child; "
        "from toolpack_server.wiring.installed import load_features; load_features(); "
        "print(*sys.modules)"
    )
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    only_authors = ("toolpack_author", "toolpack_conformance", "toolpack_server.features.authoring.trials", "toolpack_server.features.authoring.checking")
    only_authors += ("toolpack_server.user", "openai")
    assert [name for name in modules if name.startswith(only_authors)] == []
    assert "toolpack_server.web.app" in modules
