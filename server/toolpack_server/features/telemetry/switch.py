"""Whether there is telemetry, which the standard's own environment variables decide.

Nothing of OpenTelemetry is imported unless an endpoint is set. A server whose telemetry can't work says so in
its log, and serves.
"""

import os
import sys

from toolpack_server.base.logger import log
from toolpack_server.features.telemetry.environment import SIGNALS, targets
from toolpack_server.observability.tracing import Tracer
from toolpack_server.rpc.method import App


def make_tracer(app: App) -> Tracer | None:
    """Return what traces the server's calls, or None if no endpoint is set or telemetry can't work."""
    if not any(name in os.environ for name in SIGNALS):
        return None
    for_toolpacks = "opentelemetry" in sys.modules  # before this does it: they have been imported
    try:
        destinations = targets(os.environ)
        if not destinations:
            return None
        from toolpack_server.features.telemetry.calls import CallTracer  # noqa: PLC0415 - what it imports may not be there
    except ImportError as error:
        log.warning("There is no telemetry, as %s is missing: pip install 'toolpack-server[otel]'.", error.name)
        return None
    except ValueError as error:
        log.warning("There is no telemetry: %s", error)
        return None
    in_processes = app.settings.isolation == "process"
    return CallTracer(app.context.functions, destinations, in_processes=in_processes, for_toolpacks=for_toolpacks)
