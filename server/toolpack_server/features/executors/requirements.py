"""Checks whether this system supports the isolation that the settings demand.

If the system doesn't support this isolation, the server refuses to start, because isolation must never be dropped
silently. Some modules can be imported only on Linux, so this module imports them only if process isolation is on.
"""

import sys

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.executors.settings import ExecutorsSettings


def check_isolation(settings: Settings) -> None:
    """Raise a `SettingsError` if this system lacks the isolation or the sandbox of the settings."""
    sandbox = settings.of(ExecutorsSettings).sandbox
    if settings.isolation != "process":
        if sandbox:
            raise SettingsError("TOOLPACK_EXECUTORS_SANDBOX needs TOOLPACK_ISOLATION=process: set both or neither.")
        return
    if sys.platform != "linux":
        raise SettingsError("TOOLPACK_ISOLATION=process needs Linux: omit it to run toolpacks' code in threads.")
    if sandbox:
        from toolpack_server.features.executors.sandbox import check_sandbox  # noqa: PLC0415 - imports what only Linux has

        check_sandbox()


def protect(settings: Settings) -> None:
    """Prevent executors from reading the memory of this process and of its forks."""
    if settings.isolation == "process":
        from toolpack_server.features.executors import system  # noqa: PLC0415 - it imports modules that only Linux has

        system.hide_memory()
