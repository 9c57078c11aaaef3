"""What telemetry adds to the server."""

from toolpack_server.features.telemetry.switch import Telemetry
from toolpack_server.wiring.feature import Feature


class TelemetryFeature(Feature):
    name = "telemetry"
    services = (Telemetry,)
