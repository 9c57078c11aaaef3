"""`.ci/checks.py`: the selection and order of checks, and the summary at the end."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAKY = """
from pathlib import Path

def test_fails_once():
    seen = Path(__file__).with_name("seen")
    seen.touch() if (first := not seen.exists()) else None
    assert not first
"""


@pytest.fixture(scope="module")
def checks():
    spec = spec_from_file_location("checks", ROOT / ".ci" / "checks.py")
    module = sys.modules["checks"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["checks"]


@pytest.fixture
def run(checks, tmp_path, monkeypatch, capsys):
    """Return a function that runs checks on a project with a test that fails once.

    The function returns whether the checks passed, and their output.
    """
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_flaky.py").write_text(FLAKY)
    (project / ".venv" / "bin").mkdir(parents=True)
    monkeypatch.setattr(checks, "ROOT", project)
    monkeypatch.setattr(checks, "CORES", 2)
    monkeypatch.setattr(checks.Runner, "get_uv", lambda _: None)

    def run(*selected):
        monkeypatch.setattr(checks, "CHECKS", [*selected])
        run.folder.mkdir()
        passed = checks.Runner([*selected], run.folder).run()
        return passed, capsys.readouterr().out

    run.folder = tmp_path / "folder"
    return run


@pytest.mark.heavy
def test_few_failed_tests_run_again_and_are_named(checks, run):
    passed, output = run(checks.Check(f"{Path(sys.executable).parent}/pytest -q test_flaky.py"))
    assert passed, output
    assert "failed once, and passed alone: test_flaky.py::test_fails_once" in output.splitlines()


def test_a_failed_check_is_named_and_others_still_run(checks, run):
    passed, output = run(checks.Check("echo one; false"), checks.Check("echo two"))
    assert not passed
    assert output.endswith("\nfailed: echo one; false\n")
    assert "$ echo two\ntwo\n" in output


def test_an_unavailable_python_is_skipped(checks, run):
    passed, output = run(checks.Check(f"echo none here; exit {checks.UNAVAILABLE}"))
    assert passed, output
    assert "left out: echo none here; exit 77: none here" in output


def test_installs_come_first_and_suites_take_turns(checks, run):
    # Each check prints when it begins and ends. No other may begin between these two lines of an install or a suite.
    both = "echo begins >>../{0}; sleep 0.1; echo ends >>../{0}"
    passed, output = run(
        checks.Check(both.format("suites"), "suite"),
        checks.Check(both.format("suites") + " # again", "suite"),
        checks.Check("! grep -q begins ../suites 2>/dev/null && touch ../installed", "install"),
        checks.Check("test -e ../installed", "install"),
        checks.Check("test -e ../installed"),
        checks.Check("pwd | grep -q reader", "reader"),
    )
    assert passed, output
    assert (run.folder / "suites").read_text() == "begins\nends\n" * 2
