"""Prometheus metrics, the log of calls, and what a tracer is told of them.

Neither tokens nor agents' keys are ever written.
"""
