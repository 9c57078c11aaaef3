"""What telemetry adds to the server."""

from server.features.api import Feature
from server.features.telemetry.switch import Telemetry


class TelemetryFeature(Feature):
    name = "telemetry"
    services = (Telemetry,)
