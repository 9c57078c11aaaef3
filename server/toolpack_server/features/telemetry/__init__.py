"""OpenTelemetry: spans and metrics of calls and evaluations, by the names that the standard gives them."""
