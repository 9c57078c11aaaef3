"""Rules on the code's layout that import-linter (see pyproject.toml) can't express."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolpack_server
from toolpack_server.base import errors
from toolpack_server.rpc import codes

SERVER = Path(toolpack_server.__file__).parent
FILES = sorted(SERVER.rglob("*.py"))
# Files of more than 600 lines that hold one noun, each with the reason.
LONG_FILES = {"client/methods.py": "it is generated"}
MAX_PACKAGE_IMPORTS = 96  # of all packages and single modules
# Names that two classes share, each with the reason.
SHARED_NAMES = {
    "Function": "AgentDojo's name for a function, and the schema of one in the OpenRPC document",
    "Session": "an object for authors' tests, and the schema of one in the OpenRPC document",
    "Toolpack": "the authors' class adds the features' parts to that of the core",
}
FEATURES = ["audit", "conform", "episode", "executor", "mcp", "participant", "perturb", "replay", "task", "telemetry"]
# Authors' names and test sessions combine all of these.
COMBINING_ALL = {"__init__.py", "testing", *("client", "training", "user")}
# Packages for programs that use a server, or test without one.
OUTSIDE_THE_SERVER = {
    *("client", "environments.py", "perturbations.py", "pytest_plugin.py", "remote_runtime.py", "revive.py"),
    *("testing", "training", "user"),
}
# Python's tasks and executors, AgentDojo's name for an environment, a format of schemas beside those of OpenAI and
# others, and the field's word for a session that takes no more calls.
ORDINARY_NAMES = {
    *("Task", "TaskEnvironment", "asyncio.Task[Any]", "_start_asgi_task", "timeout_keep_alive_task", "task", "tasks"),
    *("all_tasks", "create_task", "current_task", "set_task_factory", "CallTask", "_make_task", "_unregister_task"),
    *("ThreadPoolExecutor", "LoopExecutor", "run_in_executor", "set_default_executor", "shutdown_default_executor"),
    *("executor", "_executors", "_executor_threads", "mcp", "EPISODE_OVER", "episode_over"),
}
# Names of values with one known class. Annotating them with `Any` would hide an import.
NAMES_OF_KNOWN_CLASSES = {
    *("address", "app", "caller", "catalog", "chain", "codec", "context", "failure", "head", "hook", "hooks", "mount"),
    *("operation", "operation_hooks", "operators", "outcome", "place", "plan", "recipe", "record", "runner", "scratch"),
    *("service", "session", "sessions", "settings", "snapshot", "state", "store", "tracer", "volume", "world"),
}
# Names annotated with `Any` nevertheless, each with the reason.
ALLOWED_ANYS = {
    ("base/errors.py", "failure"): "a `CallFailure` is built from this module's classes",
    ("cli/call.py", "outcome"): "a command imports the server's modules when it runs",
    ("engine/state.py", "hook"): "any object is a key of the memo",
    ("features/executors/transport.py", "head"): "JSON of another process",
    ("features/stores/blobs/bucket.py", "_store"): "obstore's stores have no common class",
    ("features/stores/blobs/command.py", "store"): "`OutsideBlobs` has its inner store's attributes, by `__getattr__`",
    ("features/stores/blobs/store.py", "store"): "likewise",
    ("features/replay/bundle_format.py", "_context"): "what pydantic hands over",
    ("observability/trace_context.py", "state"): "JSON of a client",
    ("snapshots/classes.py", "operators"): "they are built from this class, and kept with it",
    ("snapshots/classes.py", "state"): "what pickle hands over",
    ("snapshots/layouts.py", "state"): "likewise",
    ("snapshots/lazy_classes.py", "state"): "likewise",
    ("web/http_server.py", "app"): "uvicorn's name for any ASGI application",
}
CLIENTS_MAY_IMPORT = re.compile(
    r"toolpack_server\.((client|training)\b.*|base\.errors|protocol\.(results|steps)|features\.(\w+\.)+results)"
)


def name(path):
    return str(path.relative_to(SERVER))


@pytest.fixture(scope="module")
def nodes():
    """Yield all nodes of each file's syntax tree, the module first."""
    return {path: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] for path in FILES}


def test_the_client_imports_only_results_and_errors():
    for folder in ("client", "training"):
        for path in (SERVER / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            modules = re.findall(r"^ *(?:from|import) (toolpack_server\b[\w.]*)", text, re.MULTILINE)
            assert [module for module in modules if not CLIENTS_MAY_IMPORT.fullmatch(module)] == [], path


def test_files_hold_one_noun_and_say_why_they_exist(nodes):
    for path in FILES:
        assert ast.get_docstring(nodes[path][0]), name(path)
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 600 or name(path) in LONG_FILES, f"{name(path)}: is this one noun?"


def test_a_class_name_has_one_meaning(nodes):
    classes = {}
    for path in FILES:
        if path.relative_to(SERVER).parts[0] in OUTSIDE_THE_SERVER:
            continue
        names = {node.name.lstrip("_") for node in nodes[path] if isinstance(node, ast.ClassDef)}
        for names_in in names:
            classes.setdefault(names_in, []).append(name(path))
    assert {
        names_in: paths for names_in, paths in classes.items() if len(paths) > 1 and names_in not in SHARED_NAMES
    } == {}


def package_of(module):
    """Return the package or module below `toolpack_server` that contains a module."""
    return module.split(".")[1]


def package_imports(nodes):
    """Return the imports between packages of the server."""
    imports = set()
    for path in FILES:
        first = path.relative_to(SERVER).parts[0]
        if first in OUTSIDE_THE_SERVER or first in {"__init__.py", "__main__.py"}:
            continue
        importer = first.removesuffix(".py")
        for node in nodes[path]:
            if isinstance(node, ast.ImportFrom):
                modules = [node.module] if node.module != "toolpack_server" else []
            else:
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules = [module for module in modules if module and module.startswith("toolpack_server.")]
            imports |= {(importer, package_of(module)) for module in modules}
    return {(importer, imported) for importer, imported in imports if importer != imported}


def test_packages_import_few_others_and_have_no_cycles(nodes):
    imports = package_imports(nodes)
    sorter = graphlib.TopologicalSorter()
    for importer, imported in imports:
        sorter.add(importer, imported)
    sorter.prepare()  # raises CycleError
    assert len(imports) <= MAX_PACKAGE_IMPORTS
    assert not [arrow for arrow in imports if arrow[1] == "features"]


def is_any(annotation):
    return re.fullmatch(r"(ClassVar\[|ContextVar\[)?Any( \| None)?\]?", ast.unparse(annotation)) is not None


def anys(nodes):
    """Yield the names of arguments, attributes and variables annotated with `Any`."""
    for node in nodes:
        if isinstance(node, ast.arg) and node.annotation is not None and is_any(node.annotation):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and is_any(node.annotation):
            yield ast.unparse(node.target).rpartition(".")[2]


def test_no_any_replaces_a_class_of_the_server(nodes):
    names = {
        (name(path), each) for path in FILES for each in anys(nodes[path]) if each.strip("_") in NAMES_OF_KNOWN_CLASSES
    }
    assert names == ALLOWED_ANYS.keys()


def names_in(nodes):
    """Return the names in the code of these nodes, and its texts of one word, without docstrings and comments."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value
        yield from (
            value for kind in ("id", "attr", "arg", "name") if isinstance(value := getattr(node, kind, ""), str)
        )


def test_the_core_names_no_feature(nodes):
    features = re.compile(rf"({'|'.join(FEATURES)})", re.IGNORECASE)
    for path in FILES:
        if not path.is_relative_to(SERVER / "features") and name(path).split("/")[0] not in COMBINING_ALL:
            used = {each for each in names_in(nodes[path]) if features.search(each)} - ORDINARY_NAMES
            assert not used, name(path)


def test_only_one_module_has_the_numbers_of_errors(nodes):
    numbers = {*codes.STANDARD, *codes.CODES.values(), *codes.FAILURE_CODES.values(), codes.ERROR_OF_SERVER}
    for path in FILES:
        if name(path) == "rpc/codes.py" or path.relative_to(SERVER).parts[0] in OUTSIDE_THE_SERVER:
            continue
        negative = [
            each.operand for each in nodes[path] if isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.USub)
        ]
        error_numbers = {-each.value for each in negative if isinstance(each, ast.Constant)}
        assert not error_numbers & numbers, name(path)


def test_only_one_module_creates_the_servers_logger():
    names = [name(path) for path in FILES if 'getLogger("toolpack_server")' in path.read_text(encoding="utf-8")]
    assert names == ["base/logger.py"]


def test_every_error_is_in_one_tree_and_says_what_it_means():
    error_classes = [
        error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, BaseException)
    ]
    bases = [error for error in error_classes if not issubclass(error, errors.ToolpackServerError)]
    assert bases == [errors.Interrupted]
    assert all(
        error.__doc__ and error.__doc__ not in {base.__doc__ for base in error.__bases__} for error in error_classes
    )


def test_programs_import_these_names():
    assert set(toolpack_server.__all__) == {
        "AgentClient",
        "AsyncAgentClient",
        "AsyncClient",
        "CallError",
        "Check",
        "Client",
        "ClientError",
        "Content",
        "Database",
        "Depends",
        "EmptyEnv",
        "Evaluation",
        "Files",
        "Function",
        "FunctionCall",
        "FunctionsRuntime",
        "NoReplyError",
        "RemoteFunctionError",
        "ReplyError",
        "Rollout",
        "Task",
        "TaskEnvironment",
        "ToolNotFoundError",
        "Toolpack",
        "ToolpackServerError",
        "ToolpackUnavailable",
        "make_function",
        "reached_solution",
        "rollouts",
        "says",
    }
    assert all(hasattr(toolpack_server, each) and each in dir(toolpack_server) for each in toolpack_server.__all__)
    assert not hasattr(toolpack_server, "packs_of_nobody")


# Slow imports that users of these modules don't need.
QUICK = {
    "toolpack_server": {"asyncio", "orjson", "pydantic"},
    "toolpack_server.cli": {"asyncio", "orjson", "pydantic"},
    "toolpack_server.cli.new": {"asyncio", "orjson", "pydantic"},
    "toolpack_server.cli.token": {"asyncio", "orjson"},
    "toolpack_server.wiring.service": {
        "hypothesis",
        "jsonrpcserver",
        "jsonschema",
        "prometheus_client",
        "redis",
        "starlette",
        "uvicorn",
    },
    "toolpack_server.features.authoring.toolpack": {
        "jsonrpcserver",
        "prometheus_client",
        "redis",
        "starlette",
        "uvicorn",
    },
}


def imported_by(module):
    program = f"import sys, {module}; print(*sys.modules)"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_modules_import_no_slow_unneeded_module():
    for module, unneeded in QUICK.items():
        assert unneeded.intersection(imported_by(module)) == set(), module


def test_importing_a_server_module_loads_no_other_slow_one():
    imported = [name for name in imported_by("toolpack_server.base.errors") if name.startswith("toolpack_server")]
    assert imported == ["toolpack_server", "toolpack_server.base", "toolpack_server.base.errors"]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield module


def test_programs_import_only_helpers_that_import_no_program():
    tests = Path(__file__).parent
    modules = {path.stem: path for path in tests.rglob("*.py")}
    waiting = {*(tests.parent / "tools").rglob("*.py")}
    programs, helpers = set(waiting), set()
    while waiting:
        path = waiting.pop()
        imported = {*imports(path)}
        assert path in programs or not any(name.partition(".")[0] == "tools" for name in imported), path
        used = {modules[name] for name in imported if name in modules}
        assert not any(helper.name.startswith("test_") for helper in used), path
        waiting |= used - helpers
        helpers |= used
