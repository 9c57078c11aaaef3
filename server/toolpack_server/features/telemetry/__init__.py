"""OpenTelemetry: spans and metrics of calls and evaluations, under the names of its semantic conventions."""
