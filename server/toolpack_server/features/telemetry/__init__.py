"""OpenTelemetry: spans and metrics of calls and evaluations, named by the semantic conventions."""
