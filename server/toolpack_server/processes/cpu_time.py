"""For how long a silent process could have said something, as far as the system tells.

On a busy machine, or under a limit of processor time, a process that is well may get no turn for many seconds. The
rule: of the time in which it wants to go on only what it has had of a processor counts, and all of the time in which it
does nothing but wait. Where the system tells neither, all of the time counts.
"""

import os
from pathlib import Path

_GOES_ON = {"R", "D"}  # runs or waits for a processor; waits for a disk, or for memory that is on one


class CpuTime:
    def __init__(self, process: int) -> None:
        self._process = Path(f"/proc/{process}")
        self._used = 0.0

    def counted(self, seconds: float) -> float:
        """Get how many of the seconds since this was asked last count."""
        try:
            used = self._processor_seconds()
            goes_on = any(_fields(each / "stat")[0] in _GOES_ON for each in (self._process / "task").iterdir())
        except (OSError, IndexError):
            return seconds
        before, self._used = self._used, used
        return min(used - before, seconds) if goes_on else seconds

    def _processor_seconds(self) -> float:
        user, system = _fields(self._process / "stat")[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _fields(path: Path) -> list[str]:
    """Get what proc_pid_stat(5) says from the state on; before it is a name, which may contain anything."""
    return path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
