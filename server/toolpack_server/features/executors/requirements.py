"""Checks whether this system supports the isolation that the settings demand.

If it doesn't, the server refuses to start; isolation is never dropped silently. Without process isolation, only this
module of the package is imported.
"""

import sys

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.executors.settings import ExecutorsSettings


def check_isolation(settings: Settings) -> None:
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
