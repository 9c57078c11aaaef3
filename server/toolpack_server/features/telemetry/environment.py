"""Reader of OpenTelemetry's environment variables that select whether to export traces and metrics.

The SDK reads all other variables itself.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

TRACES, METRICS = "TRACES", "METRICS"
PROTOCOL = "http/protobuf"
_CAPTURES = {"true", "1", "span_only", "event_only", "span_and_event"}


def exported_signals(variables: Mapping[str, str]) -> set[str]:
    """Return the signals (`TRACES`, `METRICS`) that have an endpoint.

    Raises:
        ValueError: The exporter doesn't support the endpoint or the protocol.
    """
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return set()
    return {signal for signal in (TRACES, METRICS) if _is_exported(signal, variables)}


def _is_exported(signal: str, variables: Mapping[str, str]) -> bool:
    """Return whether an endpoint is set for a signal. Variables of the signal take precedence over common variables."""

    def value(name: str) -> str:
        common, specific = f"OTEL_EXPORTER_OTLP_{name}", f"OTEL_EXPORTER_OTLP_{signal}_{name}"
        return variables.get(specific, "") or variables.get(common, "")

    url, protocol = value("ENDPOINT"), value("PROTOCOL") or PROTOCOL
    exporters = variables.get(f"OTEL_{signal}_EXPORTER", "").strip() or "otlp"
    if not url or "otlp" not in exporters.split(","):
        return False
    if protocol != PROTOCOL:
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: set it to {PROTOCOL!r}, or unset it.")
    if urlsplit(url).scheme not in {"http", "https"}:
        raise ValueError(f"the endpoint for {signal.lower()} must be a URL that begins with http:// or https://.")
    return True


def captures_content(variables: Mapping[str, str]) -> bool:
    """Return whether spans should contain arguments and results."""
    return variables.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").strip().lower() in _CAPTURES
