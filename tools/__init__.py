"""Development programs that aren't tests. They import test helpers by bare names, but no test modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
