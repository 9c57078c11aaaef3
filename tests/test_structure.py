"""How the code is laid out: what import-linter (see pyproject.toml) can't say."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import server
from server.base import errors

SERVER = Path(server.__file__).parent
FILES = sorted(SERVER.rglob("*.py"))
# Files of more than 600 lines that hold one noun nevertheless, each with the reason.
LONG_FOR_A_REASON: dict[str, str] = {}
MOST_ARROWS = 114  # of all rooms, packages and single modules
# Names that two classes have for a reason.
ALIKE = {
    "Function": "AgentDojo's name for a function, and the schema of one in the OpenRPC document",
    "Session": "what a test of an author's works with, and the schema of one in the OpenRPC document",
    "Toolpack": "the authors' class adds the features' parts to that of the core",
}
CLIENT_MAY_IMPORT = {"base", "client", "functions_runtime", "jsonio", "protocol", "snapshots"}


def name(path):
    return str(path.relative_to(SERVER))


def imported_packages(path):
    """The packages and modules directly below `server` that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "server":
            yield from (alias.name for alias in node.names)
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (found.split(".")[1] for found in names if found and found.startswith("server."))


def test_the_client_imports_the_results_shapes_snapshots_json_and_errors_and_nothing_else():
    found = {package for path in (SERVER / "client").rglob("*.py") for package in imported_packages(path)}
    assert found == CLIENT_MAY_IMPORT


def test_files_hold_one_noun_and_say_why_they_exist():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), name(path)
        assert len(text.splitlines()) <= 600 or name(path) in LONG_FOR_A_REASON, f"{name(path)}: is this one noun?"


def test_a_class_name_has_one_meaning():
    found = {}
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for named in names:
            found.setdefault(named, []).append(name(path))
    assert {named: paths for named, paths in found.items() if len(paths) > 1 and named not in ALIKE} == {}


def room(module):
    """The package or module below `server` that a module is in."""
    return module.split(".")[1]


def arrows():
    """Which room imports which; `server/__init__.py` is what authors import, and no room."""
    found = set()
    for path in FILES:
        if path.parent == SERVER and path.stem in {"__init__", "__main__"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                modules = [node.module] if node.module != "server" else []
            else:
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            importer = room(f"server.{'.'.join(path.relative_to(SERVER).with_suffix('').parts)}")
            found |= {(importer, room(module)) for module in modules if module and module.startswith("server.")}
    return {(importer, imported) for importer, imported in found if importer != imported}


def test_rooms_import_few_others_and_none_in_a_circle():
    found = arrows()
    sorter = graphlib.TopologicalSorter()
    for importer, imported in found:
        sorter.add(importer, imported)
    sorter.prepare()  # raises CycleError
    assert len(found) <= MOST_ARROWS
    assert not [arrow for arrow in found if arrow[1] == "features"]


def test_the_tree_of_errors_is_drawn_whole():
    def tree(base, before=""):
        children = [error for error in found if error.__bases__[0] is base]
        for child in children:
            last = child is children[-1]
            yield before + ("└── " if last else "├── ") + child.__name__
            yield from tree(child, before + ("    " if last else "│   "))

    found = [error for error in vars(errors).values() if isinstance(error, type)]
    drawn = [line[4:] for line in errors.__doc__.splitlines() if "──" in line]
    assert [re.match(r"[│├└─ ]*\w+", line)[0] for line in drawn] == list(tree(errors.ToolpackServerError))
    assert [error for error in found if error.__bases__[0] is BaseException] == [errors.Interrupted]


def test_authors_import_these_names():
    assert set(server.__all__) == {
        "Check",
        "Content",
        "Database",
        "Depends",
        "EmptyEnv",
        "Evaluation",
        "Files",
        "Function",
        "FunctionCall",
        "FunctionsRuntime",
        "Rollout",
        "Task",
        "TaskEnvironment",
        "ToolNotFoundError",
        "Toolpack",
        "make_function",
        "reached_solution",
    }
    assert all(hasattr(server, exported) and exported in dir(server) for exported in server.__all__)
    assert not hasattr(server, "packs_of_nobody")


def test_whoever_imports_a_module_of_the_server_waits_for_that_one_alone():
    program = "import sys, server.base.errors; print(*(name for name in sys.modules if name.startswith('server')))"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert imported.split() == ["server", "server.base", "server.base.errors"]
