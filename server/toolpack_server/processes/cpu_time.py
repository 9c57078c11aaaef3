"""CPU time of a silent process, by which its supervisor can tell whether the process hangs or only gets no CPU.

On a busy machine, or under a CPU limit, a healthy process may not run for many seconds. So only CPU time counts while
the process is runnable, and wall-clock time counts while it sleeps. On systems without `/proc`, wall-clock time counts.
"""

import os
from pathlib import Path

_RUNNABLE_STATES = {"R", "D"}  # runs or waits for a CPU; waits for a disk or for swapped memory


class CpuTime:
    """The counted time of one process."""

    def __init__(self, process: int) -> None:
        self._process = Path(f"/proc/{process}")
        self._used = 0.0

    def counted(self, seconds: float) -> float:
        """Return how many of the seconds since the last call of this method count."""
        try:
            used = self._processor_seconds()
            threads = (self._process / "task").iterdir()
            is_runnable = any(_fields(thread / "stat")[0] in _RUNNABLE_STATES for thread in threads)
        except (OSError, IndexError):
            return seconds
        before, self._used = self._used, used
        return min(used - before, seconds) if is_runnable else seconds

    def _processor_seconds(self) -> float:
        user, system = _fields(self._process / "stat")[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _fields(path: Path) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the state on. The name before the state may contain any character."""
    return path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
