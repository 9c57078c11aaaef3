"""Whether this system can keep toolpacks' code apart as the settings want it.

What can't be done is refused before the server starts; it is never omitted silently. Only this module of the
package is imported where there are no executors.
"""

import sys

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings
from toolpack_server.features.executors.settings import ExecutorsSettings


def check_isolation(settings: Settings) -> None:
    sandbox = settings.of(ExecutorsSettings).sandbox
    if settings.isolation != "process":
        if sandbox:
            raise SettingsError(
                "TOOLPACK_EXECUTORS_SANDBOX needs TOOLPACK_ISOLATION=process: set both, or none of them."
            )
        return
    if sys.platform != "linux":
        raise SettingsError("TOOLPACK_ISOLATION=process needs Linux: omit it, and toolpacks' code runs in threads.")
    if sandbox:
        from toolpack_server.features.executors.sandbox import check_sandbox  # noqa: PLC0415 - imports what only Linux has

        check_sandbox()


def protect(settings: Settings) -> None:
    """Keep executors from reading the memory of this process, and of those that it forks, where they could."""
    if settings.isolation == "process":
        from toolpack_server.features.executors import system  # noqa: PLC0415 - only Linux has what it imports

        system.hide_memory()
