"""CPU time of a process without heartbeats, which tells the supervisor whether the process hangs or only lacks CPU.

On a busy machine, or under a CPU limit, a healthy process might not run for many seconds. So only CPU time counts while
the process is runnable, and wall-clock time counts while it sleeps. On systems without `/proc`, only wall-clock time
counts.
"""

import os
from pathlib import Path

_RUNNABLE_STATES = {"R", "D"}  # R: runs, or waits for a CPU; D: waits for a disk or for swapped memory


class CpuTime:
    """Counter of one process's time: CPU time while the process is runnable, and wall-clock time while it sleeps."""

    def __init__(self, process: int) -> None:
        self._process = Path(f"/proc/{process}")
        self._used = 0.0

    def counted(self, seconds: float) -> float:
        """Return how many of the seconds since the last call of this method count.

        Args:
            seconds: The wall-clock seconds since the last call.
        """
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
    """Return the fields of proc_pid_stat(5), starting with the state. The name before it can contain any character."""
    return path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
