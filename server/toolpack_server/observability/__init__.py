"""Prometheus metrics, the log of calls, and what a tracer is told of them.

The rule: neither tokens nor agents' keys are ever written.
"""
