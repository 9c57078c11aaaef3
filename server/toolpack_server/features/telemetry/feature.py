"""The feature that traces calls, if OpenTelemetry's environment variables name an endpoint.

Nothing of OpenTelemetry is imported unless they do. If telemetry can't work, the server logs why, and serves.
"""

import os
import sys

from toolpack_server.base.logger import log
from toolpack_server.features.telemetry.environment import exported_signals
from toolpack_server.observability.tracing import Tracer
from toolpack_server.rpc.method import App
from toolpack_server.wiring.feature import Feature


def create_tracer(app: App) -> Tracer | None:
    """Create the server's tracer; return None if no endpoint is set or telemetry can't work."""
    try:
        signals = exported_signals(os.environ)
        if not signals:
            return None
        for_toolpacks = "opentelemetry" in sys.modules  # toolpacks have imported it, as the server hasn't yet
        from toolpack_server.features.telemetry.tracer import CallTracer  # noqa: PLC0415 - its imports are optional

        in_processes = app.settings.isolation == "process"
        return CallTracer(app.context.functions, signals, in_processes=in_processes, for_toolpacks=for_toolpacks)
    except ImportError as error:
        log.warning("There is no telemetry, as %s is missing: pip install 'toolpack-server[otel]'.", error.name)
    except (OverflowError, ValueError) as error:
        log.warning("There is no telemetry: %s", error)
    return None


class TelemetryFeature(Feature):
    name = "telemetry"
    tracer = create_tracer
