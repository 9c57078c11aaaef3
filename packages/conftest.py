"""What the tests of the packages share with those of the server: fixtures, helpers, and how they are run."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))
_spec = spec_from_file_location("conftest_of_the_server", TESTS / "conftest.py")
_shared = module_from_spec(_spec)
_spec.loader.exec_module(_shared)
# But not that which has the processes import the server's test files.
del _shared.pytest_configure
globals().update({name: found for name, found in vars(_shared).items() if not name.startswith("_")})
