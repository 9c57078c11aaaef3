"""Programs for developers that aren't tests. They import helpers of the tests by bare names, and no tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
