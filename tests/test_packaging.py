"""The distribution: its dependencies match its imports, it fits its uvicorn, and its sdist passes its own tests."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tarfile
import textwrap
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import uvicorn
from ci import IN_CI
from hatchling.builders.sdist import SdistBuilder
from trove_classifiers import classifiers

from toolpack_server.processes.draining import DrainingServer
from toolpack_server.web.http_server import HttpServer, LimitedProtocol

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = (
    "blobs",
    "agentdojo",
    "client",
    "otel",
    "postgres",
    "receipts",
    "redis",
    "reload",
    "seeded",
    "user",
)  # extras with dependencies of the server; the other extras are for development


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


# Packages that few users need and that are in no extra. The pages of docs/internals describe their installation.
UNDECLARED = {"bfcl_eval", "hypothesis", "loguru", "openenv", "pytest", "tau2", "websockets"}
TAKEN_BY_UVICORN = {"httptools", "uvloop"}  # imported if they are installed


PACKAGES = sorted((ROOT / "packages").glob("*/pyproject.toml"))


def declared_dependencies():
    required = [*PROJECT["dependencies"], *(r for extra in EXTRAS for r in PROJECT["optional-dependencies"][extra])]
    return (
        {canonical(re.match(r"[\w.-]+", requirement)[0]) for requirement in required}
        - TAKEN_BY_UVICORN
        - {"toolpack-server"}
    )


def imported_modules(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.heavy  # this check needs all extras
def test_imports_match_the_declared_dependencies():
    files = [path for package in ("server", "toolpacks") for path in (ROOT / package).rglob("*.py")]
    modules = {name for path in files for name in imported_modules(path.read_text(encoding="utf-8"))}
    modules -= sys.stdlib_module_names | {"toolpack_server", "toolpacks"} | UNDECLARED
    distributions = packages_distributions()
    requirements = {canonical(distributions[module][0]) for module in modules - {"opentelemetry"}}
    parts = {name for name in declared_dependencies() if name.startswith("opentelemetry-")}
    assert requirements == declared_dependencies() - parts
    assert parts <= {canonical(name) for name in distributions["opentelemetry"]}


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_imports_of_packages_match_their_dependencies(path):
    project, own = tomllib.loads(path.read_text(encoding="utf-8"))["project"], path.parent.name.replace("-", "_")
    files = (path.parent / own).rglob("*.py")
    modules = {name for each in files for name in imported_modules(each.read_text(encoding="utf-8"))}
    ours = {"toolpack_server", own}
    others = modules - ours - sys.stdlib_module_names - UNDECLARED
    distributions = packages_distributions()
    if not others <= distributions.keys():
        pytest.skip(f"{path.parent.name} isn't installed")
    requirements = {canonical(distributions[module][0]) for module in others} | {"toolpack-server"}
    assert requirements == {canonical(re.match(r"[\w.-]+", each)[0]) for each in project["dependencies"]}
    assert project["version"] == PROJECT["version"]
    assert f"toolpack-server=={PROJECT['version']}" in project["dependencies"]


def test_the_classifiers_exist():
    assert set(PROJECT["classifiers"]) <= classifiers


# uvicorn's protocol classes have no stable interface. These are their attributes that `LimitedProtocol` uses or
# overrides. Without httptools its class can't be imported, so this test reads the source.
BOTH = {
    "app_state",
    "connection_lost",
    "connection_made",
    "connections",
    "cycle",
    "data_received",
    "eof_received",
    "loop",
    "on_response_complete",
    "pause_writing",
    "headers",
    "resume_writing",
    "scope",
    "send_400_response",
    "timeout_keep_alive",
    "timeout_keep_alive_handler",
    "timeout_keep_alive_task",
    "transport",
    "_should_upgrade",
    "_unsupported_upgrade_warning",
    "handle_websocket_upgrade",
}
ONE = {
    "H11Protocol": {"conn"},
    "HttpToolsProtocol": {
        "on_message_begin",
        "on_headers_complete",
        "on_body",
        "on_message_complete",
        "parser",
        "url",
        "_start_asgi_task",
    },
}
SERVER = {"config", "lifespan", "server_state", "servers"}
STATE = {"connections", "default_headers", "tasks"}
CONFIG = {"encoded_headers", "get_loop_factory", "http_protocol_class"}
OVERRIDDEN = {"handle_exit", "on_tick", "should_exit", "shutdown"}  # by the subclass in `processes`
CYCLE = {"disconnected", "keep_alive", "message_event", "response_complete", "response_started"}


def attributes(node):
    """Return the names that a class defines, or assigns to `self`."""
    defined = {inner.name for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}
    names = {inner.attr for inner in attributes_of("self", node) if isinstance(inner.ctx, ast.Store)}
    annotated = {inner.target.id for inner in node.body if isinstance(inner, ast.AnnAssign)}
    return defined | names | annotated


def attributes_of(owner, node):
    """Return the expressions in a class that use an attribute of `self` or of `super()`."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            value = inner.value.func if isinstance(inner.value, ast.Call) else inner.value
            if isinstance(value, ast.Name) and value.id == owner:
                yield inner


def uvicorn_class(module, name):
    source = (Path(uvicorn.__file__).parent / "protocols" / "http" / f"{module}.py").read_text(encoding="utf-8")
    return next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)


@pytest.mark.parametrize(("module", "name"), [("h11_impl", "H11Protocol"), ("httptools_impl", "HttpToolsProtocol")])
def test_uvicorn_has_the_attributes_that_the_connections_use(module, name):
    assert BOTH | ONE[name] <= attributes(uvicorn_class(module, name))
    assert attributes(uvicorn_class(module, "RequestResponseCycle")) >= CYCLE


def test_the_connections_use_no_other_attributes_of_uvicorn():
    (ours,) = ast.parse(textwrap.dedent(inspect.getsource(LimitedProtocol))).body
    used = {node.attr for node in attributes_of("self", ours)} - attributes(ours)
    used |= {node.attr for node in attributes_of("super", ours)}
    assert used <= BOTH | ONE["H11Protocol"] | ONE["HttpToolsProtocol"]
    assert {node.attr for node in ast.walk(ours) if isinstance(node, ast.Attribute) and is_cycle(node.value)} <= CYCLE


def uvicorn_source(*path):
    return ast.parse(Path(uvicorn.__file__).parent.joinpath(*path).read_text(encoding="utf-8"))


def class_in(tree, name):
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def test_uvicorn_has_the_attributes_that_the_server_uses():
    server = uvicorn_source("server.py")
    assert attributes(class_in(server, "Server")) >= SERVER | OVERRIDDEN
    assert attributes(class_in(server, "ServerState")) >= STATE
    assert attributes(class_in(uvicorn_source("config.py"), "Config")) >= CONFIG


def test_the_server_uses_no_other_attributes_of_uvicorn():
    (ours,) = ast.parse(textwrap.dedent(inspect.getsource(HttpServer))).body
    assert {node.attr for node in attributes_of("self", ours)} - attributes(ours) <= SERVER
    nested = [node for node in ast.walk(ours) if isinstance(node, ast.Attribute)]
    nested = [node for node in nested if isinstance(node.value, ast.Attribute)]
    assert {node.attr for node in nested if node.value.attr == "config"} <= CONFIG
    assert {node.attr for node in nested if node.value.attr == "server_state"} <= STATE
    (theirs,) = ast.parse(textwrap.dedent(inspect.getsource(DrainingServer))).body
    names = attributes(ours) | attributes(theirs)
    assert {node.attr for node in attributes_of("self", theirs)} - names <= OVERRIDDEN


@pytest.mark.heavy
def test_one_file_imports_uvicorn():
    files = [path for path in (ROOT / "server").rglob("*.py") if "uvicorn" in imported_modules(path.read_text())]
    assert files == [ROOT / "server" / "toolpack_server" / "web" / "http_server.py"]


def is_cycle(node):
    return isinstance(node, ast.Attribute) and node.attr in {"cycle", "_running"}


def sdist(folder):
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(folder))
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder / Path(path).name.removesuffix(".tar.gz")


def files_in(folder):
    """Return the files under version control; without a repository, the files in the project's folders."""
    if (folder / ".git").exists():
        process = subprocess.run(["git", "ls-files", "-z"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        return {name for name in process.stdout.split("\0") if name and (folder / name).exists()}
    folders = (".ci", "docs", "packages", "schemas", "server", "tests", "tools", "toolpacks")
    paths = [path for name in folders for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)) for path in paths if "__pycache__" not in path.parts}


def test_the_sdist_has_every_file_of_the_project(tmp_path):
    unpacked = sdist(tmp_path)
    assert {name for name in files_in(ROOT) if not (unpacked / name).exists()} == set()


@pytest.mark.skipif(not IN_CI, reason="runs other tests once more: where CI=true")
@pytest.mark.heavy
def test_the_sdist_passes_its_own_tests(tmp_path):
    unpacked = sdist(tmp_path)
    # These tests read files of the project; the others only have to find their imports. Tests of the pages read files
    # too, which the test above compares, but take minutes.
    names = ("test_docs.py", "test_settings.py", "test_schemas.py", "test_packaging.py")
    selection = [path for name in names for path in unpacked.glob(f"tests/**/{name}")]
    assert len(selection) == len(names)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not heavy", "-n", "0", *selection],
        cwd=unpacked,
        env=os.environ | {"CI": "", "PYTHONPATH": str(unpacked)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
