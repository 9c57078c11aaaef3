"""Fixtures, helpers and pytest hooks that the packages' tests share with the server's tests."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))
_spec = spec_from_file_location("conftest_of_the_server", TESTS / "conftest.py")
_shared = module_from_spec(_spec)
_spec.loader.exec_module(_shared)
# This hook lets started processes import the server's test files, which the packages' tests don't need.
del _shared.pytest_configure
globals().update({name: value for name, value in vars(_shared).items() if not name.startswith("_")})
