"""Observability: Prometheus metrics, the log, and the interface of tracers.

Tokens and agents' keys are never written.
"""
