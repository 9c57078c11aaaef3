"""Programs for developers that aren't tests; they may import the tests' helpers by bare names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
