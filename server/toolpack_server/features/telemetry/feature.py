"""What telemetry adds to the server."""

from toolpack_server.features.api.core import Feature
from toolpack_server.features.telemetry.switch import Telemetry


class TelemetryFeature(Feature):
    name = "telemetry"
    services = (Telemetry,)
