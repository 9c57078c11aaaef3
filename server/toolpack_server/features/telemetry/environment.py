"""OpenTelemetry's environment variables for exporters: opentelemetry.io/docs/specs/otel/protocol/exporter.

Pure. A variable for one signal goes before the one for all; what can't be kept is refused in a sentence.
"""

import os
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

TRACES, METRICS = "TRACES", "METRICS"
SIGNALS = ("OTEL_EXPORTER_OTLP_ENDPOINT", *(f"OTEL_EXPORTER_OTLP_{each}_ENDPOINT" for each in (TRACES, METRICS)))
"""The variables of which one must be set."""
PROTOCOL = "http/protobuf"
SECONDS = 10.0  # that one request may take, unless a variable says otherwise
MOST = 2**31 - 1  # of what a variable says: neither threads nor queues take any number
_TRUE = {"true", "1", "span_only", "event_only", "span_and_event"}


class Destination(NamedTuple):
    """Where one signal is sent."""

    url: str
    headers: Mapping[str, str]
    seconds: float  # that a request may take
    gzip: bool
    tls: ssl.SSLContext | None


def targets(variables: Mapping[str, str]) -> dict[str, Destination]:
    """Get where each signal is sent; one that is to go nowhere is missing.

    Raises:
        ValueError: A variable can't be kept.
    """
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    found = {signal: _target(signal, variables) for signal in (TRACES, METRICS)}
    return {signal: target for signal, target in found.items() if target is not None}


def _target(signal: str, variables: Mapping[str, str]) -> Destination | None:
    def given(name: str) -> str:
        of_all, own = f"OTEL_EXPORTER_OTLP_{name}", f"OTEL_EXPORTER_OTLP_{signal}_{name}"
        return variables.get(own, "").strip() or variables.get(of_all, "").strip()

    url = variables.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "").strip()
    if not url and (of_all := variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()):
        url = f"{of_all.rstrip('/')}/v1/{signal.lower()}"
    exporters = variables.get(f"OTEL_{signal}_EXPORTER", "").strip() or "otlp"
    if not url or "otlp" not in exporters.split(","):
        return None
    if (given("PROTOCOL") or PROTOCOL) != PROTOCOL:
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {given('PROTOCOL')!r}; only {PROTOCOL!r} is spoken here.")
    if urlsplit(url).scheme not in {"http", "https"}:
        raise ValueError(f"the endpoint for {signal.lower()} isn't a URL that begins with http:// or https://.")
    tls = None
    if urlsplit(url).scheme == "https":
        try:
            tls = ssl.create_default_context(cafile=given("CERTIFICATE") or None)
            if given("CLIENT_CERTIFICATE"):
                tls.load_cert_chain(given("CLIENT_CERTIFICATE"), given("CLIENT_KEY") or None)
        except OSError as error:
            raise ValueError(f"a certificate of OTEL_EXPORTER_OTLP_* can't be read: {error}.") from None
    return Destination(url, _headers(given("HEADERS")), _seconds(given("TIMEOUT")), given("COMPRESSION") == "gzip", tls)


def _headers(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if "=" in pair]
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in pairs}


def _seconds(text: str) -> float:
    try:
        seconds = float(text) if text else SECONDS
    except ValueError:
        seconds = 0
    if not 0 < seconds <= MOST:
        raise ValueError("OTEL_EXPORTER_OTLP_TIMEOUT isn't a number of seconds: correct it.")
    return seconds


def number(name: str, default: int) -> int:
    """Get a positive whole number, at most `MOST`; the default if there is none."""
    text = os.environ.get(name, "").strip()
    return min(int(text), MOST) if text.isdecimal() and int(text) else default


def captures_content() -> bool:
    """Whether arguments and results may be exported."""
    return os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "").strip().lower() in _TRUE
