"""`examples/compare_port.py` finds no difference in a faithful port, and the differing call in a faulty port."""

import subprocess
import sys
from pathlib import Path

import pytest
import server_process

ROOT = Path(__file__).parents[2]
ORIGINAL = '''class Counter:
    def __init__(self):
        self.counts = {"a": 1}

    def count(self, name: str, by: int = 1) -> int:
        """Count.

        Args:
            name: What.
            by: How many.
        """
        if by < 0:
            raise ValueError("less than nothing")
        self.counts[name] = self.counts.get(name, 0) + by
        return self.counts[name]

    def known(self) -> tuple[str, ...]:
        """List what is counted."""
        return tuple(self.counts)
'''
PORT = """from toolpack_server import Toolpack
from toolpacks._{0} import Counter

toolpack = Toolpack.from_class("{0}", Counter)
"""


@pytest.mark.heavy
def test_compare_port_finds_the_differences(tmp_path):
    changed = ORIGINAL.replace("+ by", "+ by + (name == 'inbox')")
    port = ORIGINAL.replace("def known", "def _known").replace("raise ValueError", "raise KeyError")
    for name, source in {"same": ORIGINAL, "changed": changed, "errors": port}.items():
        (tmp_path / f"_{name}.py").write_text(source)
        (tmp_path / f"{name}.py").write_text(PORT.format(name))
    flags = ["--store", "memory:", "--pack-dir", str(tmp_path), "--packs", "same,changed,errors"]
    with server_process.served(tmp_path, *flags) as server:

        def run_comparison(toolpack):
            command = [sys.executable, str(ROOT / "examples" / "compare_port.py"), server.url, toolpack]
            command += ["_same:Counter", "--path", str(tmp_path), "--sessions", "5"]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            assert not ran.stderr, ran.stderr
            return ran.returncode, ran.stdout

        assert run_comparison("same") == (0, "5 sessions of 30 calls: no difference.\n")
        status, printed = run_comparison("changed")
        assert (status, printed.splitlines()[-3].split(",")[0]) == (1, "  count(**{'name': 'inbox'")
        status, printed = run_comparison("errors")
        assert printed.splitlines()[-2:] == ["original: (None, 'ValueError')", "port:     (None, 'KeyError')"]
        assert status == 1
