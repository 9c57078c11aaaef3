"""Whether there is telemetry, which the standard's own environment variables decide.

Nothing of OpenTelemetry is imported unless an endpoint is set. A server whose telemetry can't work says so in
its log, and serves.
"""

import logging
import os
import sys

from toolpack_server.features.telemetry.environment import SIGNALS, Destination, targets
from toolpack_server.rpc.method import App

log = logging.getLogger("toolpack_server")


class Telemetry:
    """Makes the server trace its calls, if an endpoint is set."""

    def __init__(self, app: App) -> None:
        self.targets: dict[str, Destination] = {}
        if not any(name in os.environ for name in SIGNALS):
            return
        for_toolpacks = "opentelemetry" in sys.modules  # before this does it: they have been imported
        try:
            self.targets = targets(os.environ)
            if not self.targets:
                return
            from toolpack_server.features.telemetry.calls import CallTracer  # noqa: PLC0415 - what it imports may not be there
        except ImportError as error:
            log.warning("There is no telemetry, as %s is missing: pip install 'toolpack-server[otel]'.", error.name)
        except ValueError as error:
            log.warning("There is no telemetry: %s", error)
        else:
            in_processes = app.settings.isolation == "process"
            tracer = CallTracer(
                app.context.functions, self.targets, in_processes=in_processes, for_toolpacks=for_toolpacks
            )
            app.tracer = tracer
            app.at_end.append(tracer.close)
