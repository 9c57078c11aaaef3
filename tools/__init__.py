"""Programs for the development of the server, such as long tests and benchmarks.

They use the helper modules of `tests/`, which this package makes importable by bare names. They import no test modules.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
