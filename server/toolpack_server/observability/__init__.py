"""Observability: Prometheus metrics, the log, and the interface of tracers.

None of them contains tokens or agents' keys.
"""
