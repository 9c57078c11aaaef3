"""OpenTelemetry: spans and metrics for calls and evaluations, with names from OpenTelemetry's semantic conventions."""
