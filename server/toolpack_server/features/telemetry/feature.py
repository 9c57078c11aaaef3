"""Declaration of the feature `telemetry`, which is active if OpenTelemetry's variables name an endpoint.

Without an endpoint, OpenTelemetry isn't imported. If telemetry can't be set up, the server logs the reason and runs
without telemetry.
"""

import os
import sys

from toolpack_server.base.logger import log
from toolpack_server.features.telemetry.environment import exported_signals
from toolpack_server.observability.tracing import Tracer
from toolpack_server.rpc.method import App
from toolpack_server.wiring.feature import Feature


def create_tracer(app: App) -> Tracer | None:
    """Create the server's tracer. Return None if no endpoint is set or telemetry can't be set up."""
    try:
        signals = exported_signals(os.environ)
        if not signals:
            return None
        # The server itself imports OpenTelemetry only below. If it is loaded already, a toolpack uses it.
        for_toolpacks = "opentelemetry" in sys.modules
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
