"""Shared fixtures, and the distribution of the tests over processes."""

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import postgres_server
import pytest
import redis_server
import serving
import warm

from toolpack_server.engine import queues, session_clock
from toolpack_server.sessions import manager
from toolpack_server.stores.history import GAP_SECONDS, NOTE_SECONDS

# The tests stop their servers by SIGHUP. Under `nohup` the signal is ignored, and child processes would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A test of a toolpack in this folder needs only pytest.
try:
    import hypothesis
except ModuleNotFoundError:
    hypothesis = None
else:
    # These checks are off: an example may be slow on a busy machine, and one fixture may serve many examples.
    checks = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
    hypothesis.settings.register_profile("tests", deadline=None, max_examples=20, suppress_health_check=checks)
    hypothesis.settings.register_profile("heavy", hypothesis.settings.get_profile("tests"), max_examples=100)
    hypothesis.settings.load_profile("tests")

# The folders mirror those of `toolpack_server`. Test modules import helpers and each other by bare names.
TESTS = Path(__file__).parent
sys.path[:0] = sorted({str(path.parent) for path in TESTS.rglob("test_*.py")})
sys.path += sorted(map(str, TESTS.parent.glob("packages/*/tests")))


def check_installation():
    """Stop the tests if an installed distribution has other entry points than its pyproject.toml in this checkout."""
    for path in (TESTS.parent, TESTS.parent / "packages" / "toolpack-trainers"):
        project = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        expected = {(group, *each) for group, names in project["entry-points"].items() for each in names.items()}
        with contextlib.suppress(ModuleNotFoundError):
            installed = {(each.group, each.name, each.value) for each in distribution(project["name"]).entry_points}
            if expected <= installed:
                continue
        pytest.exit(
            f"{project['name']} isn't installed as its pyproject.toml says: run "
            "`.venv/bin/pip install -q -e '.[test]' -e packages/toolpack-trainers`.",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


check_installation()

HEAVY = "heavy and not long"  # the meaning of `-m heavy`

gc.disable()  # imports leave no garbage, so collections are off until all tests are collected

# The tests start Python hundreds of times, and compiling the server's modules each time would take long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config):
    """Choose the tests and the number of processes.

    If all arguments are files, run all of their tests in this process, which starts sooner and allows `-s`. Otherwise
    leave out heavy and long tests, and use three processes per core, because tests wait for servers and deadlines
    longer than they compute. Heavy tests compute more, so they get two processes per core.
    """
    named = all(Path(argument.partition("::")[0]).is_file() for argument in config.args)
    heavy = bool(config.option.markexpr)
    if not named and not heavy:
        config.option.markexpr = "not heavy and not long"
    elif config.option.markexpr == "heavy":
        config.option.markexpr = HEAVY
    chosen = config.getoption("numprocesses", 0)  # 0 without pytest-xdist: tests run in this process
    if chosen is None and not (named or config.option.usepdb or hasattr(config, "workerinput")):
        cores = os.cpu_count() or 1
        config.option.numprocesses = min(cores * 2 if heavy else cores * 3, 12)
        config.option.dist = "worksteal"  # the tests of a file mostly stay in one process


def pytest_configure(config):
    """Choose the number of examples for property tests, and compile the test files.

    If there are several processes, each first imports another share of the files. So each file is compiled only once,
    and the other processes read its bytecode.
    """
    if hypothesis and config.option.markexpr == HEAVY:
        hypothesis.settings.load_profile("heavy")
    if hasattr(config, "workerinput"):
        files = sorted(path.stem for path in TESTS.rglob("test_*.py"))
        number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
        for name in files[number::count]:
            with contextlib.suppress(BaseException):  # pytest reports the error when it collects the file
                importlib.import_module(name)


def pytest_collection_modifyitems(config, items):
    """Mark heavy tests: tests in a browser, and with `-m heavy` property tests, which then get more examples."""
    with_many = hypothesis and config.option.markexpr == HEAVY
    for item in items:
        is_property = with_many and hypothesis.is_hypothesis_test(getattr(item, "obj", None))
        if (is_property and _has_more_examples(item)) or "window" in item.fixturenames:
            item.add_marker("heavy")


def _has_more_examples(item):
    """Return whether a property test has more examples with `-m heavy`, because it doesn't set their number itself."""
    own = getattr(item.cls, "settings", None) or getattr(item.obj, "_hypothesis_internal_use_settings", None)
    return own is None or own.max_examples == hypothesis.settings.default.max_examples


def pytest_collection_finish():
    gc.freeze()  # no module is ever freed, so garbage collections needn't scan them, also in forked processes
    gc.enable()


@pytest.fixture(autouse=True)
def _check_log_handlers():
    """Check that a test leaves the root logger's handlers unchanged."""
    before = [*logging.getLogger().handlers]
    yield
    assert logging.getLogger().handlers == before


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    with redis_server.start(tmp_path_factory.mktemp("redis")) as (url, _):
        yield url


@pytest.fixture(scope="session")
def postgres_url():
    with postgres_server.start(*postgres_server.UNSAFE) as server:
        yield server.url


@pytest.fixture(scope="module")
def window(server, tmp_path_factory):
    """Yield a browser for the tests of a file. The file's fixture `server` is the server to show."""
    import browser  # noqa: PLC0415 - slow, and most files don't need it

    with browser.browser(server.url, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(window):
    """Yield the browser. Afterwards check that no text of a session became markup or ran, and that no script failed."""
    window.resize(1280)
    window.driver.get("about:blank")
    yield window
    assert window.run("return [window.ran, window.violations, window.problems]") == [0, [], []]
    assert window.run("return document.querySelectorAll('main :is(img, script, iframe)').length") == 0
    window.resize(1280)


@pytest.fixture
def cold(monkeypatch):
    """Start commands as new processes, instead of forks of a process that has imported the server (see `warm`)."""
    monkeypatch.setattr(warm.Warm, "is_cold", True)


@pytest.fixture
def store_url(request, tmp_path):
    """Return the URL of an empty store: `memory`, `sqlite`, `redis` or `postgres`."""

    def url(kind):
        if kind == "postgres":
            return postgres_server.emptied(request.getfixturevalue("postgres_url"))
        if kind == "redis":
            return redis_server.emptied(request.getfixturevalue("redis_url"))
        return "memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'sessions.db'}"

    return url


@pytest.fixture
def isolation(request, monkeypatch):
    """Return the isolation in which functions run, `thread` or `process` (see `serving.IN_BOTH`)."""
    chosen = getattr(request, "param", "thread")
    monkeypatch.setattr(serving, "isolation", chosen)
    return chosen


@pytest.fixture
def in_threads(isolation):
    """Run the test only with functions in threads of the server."""
    if isolation == "process":
        pytest.skip("this is about functions in threads")


@pytest.fixture
def bench(make_bench):
    """Return a server without HTTP, with a store in memory."""
    return make_bench()


@pytest.fixture
def make_bench(isolation):  # noqa: ARG001 - must be set before
    """Return a factory of servers without HTTP, and close them after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **settings: stack.enter_context(serving.Bench(*arguments, **settings))


@pytest.fixture(params=["memory", "sqlite"])
def stored_bench(request, store_url, make_bench):
    """Return a server without HTTP. The test runs with each store that needs no other program."""
    return make_bench(store=store_url(request.param))


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock that decides the expiry of sessions."""
    of_stores = ("toolpack_server.sessions.", "toolpack_server.stores.", "toolpack_server.features.stores.sqlite.")
    modules = [sys.modules[name] for name in sys.modules if name.startswith(of_stores)]
    return serving.Clock(monkeypatch, queues, session_clock, *(each for each in modules if hasattr(each, "time")))


@pytest.fixture
def pass_time(clock, monkeypatch):
    """Return a function that moves the clock while a server sweeps expired sessions.

    A server counts a longer gap between two sweeps than `GAP_SECONDS` as a jump of its clock. So the function moves the
    clock in shorter steps, and waits for a sweep after each.
    """
    monkeypatch.setattr(manager, "SWEEP_SECONDS", 0.001)

    def pass_time(bench, seconds):
        with bench.sweeping() as look:
            look(1)
            while seconds > 0:
                clock.move(step := min(seconds, GAP_SECONDS - NOTE_SECONDS))
                seconds -= step
                look(2)  # the first sweep may have begun before the clock moved

    return pass_time


@pytest.fixture
def mcp(server):
    """Return a new session on the MCP server that all tests of a file share."""
    from mcp_endpoint import Mcp  # noqa: PLC0415 - most tests need no HTTP

    return Mcp(server.endpoint)
