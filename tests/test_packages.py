"""The distributions in packages/: their imports from the server, and that no serving process imports them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ROOT.glob("packages/*/toolpack_*") for path in folder.rglob("*.py")]
CORE = "toolpack_server"
SEAM = {f"{CORE}.features.{name}" for name in ("api.core", "api.http", "api.commands", "api.volumes")}
PUBLIC = [f"{CORE}.{name}" for name in ("client", "testing", "training")]
MOST_NAMES = 71  # number of the server's names that only tools for authors use, which may only fall


def imported_names(path):
    """Return the modules that a file imports from, each with the names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module, {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            yield from ((alias.name, set()) for alias in node.names)


@pytest.mark.parametrize("package", ["toolpack-a2a", "toolpack-conformance", "toolpack-trainers"])
def test_package_imports_only_the_feature_api(package):
    folder = ROOT / "packages" / package
    modules = {module for path in FILES if path.is_relative_to(folder) for module, _ in imported_names(path)}
    assert {each for each in modules if each.startswith(f"{CORE}.") and not each.startswith(tuple(PUBLIC))} <= SEAM


def test_tools_for_authors_import_few_other_names():
    imports = [each for path in FILES for each in imported_names(path) if each[0].startswith(f"{CORE}.")]
    names = {(module, name) for module, names in imports for name in names}
    assert len([each for each in names if each[0] not in SEAM and not each[0].startswith(tuple(PUBLIC))]) <= MOST_NAMES


@pytest.mark.heavy
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
    only_authors = (
        "a2a",
        "toolpack_a2a",
        "toolpack_author",
        "toolpack_conformance",
        "toolpack_server.features.authoring.checking",
    )
    only_authors += ("toolpack_server.user", "openai")
    assert [name for name in modules if name.startswith(only_authors)] == []
    assert "toolpack_server.web.app" in modules
