"""What telemetry adds to the server."""

from toolpack_server.features.telemetry.switch import make_tracer
from toolpack_server.wiring.feature import Feature


class TelemetryFeature(Feature):
    name = "telemetry"
    tracer = make_tracer
