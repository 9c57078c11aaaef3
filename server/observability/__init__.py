"""Prometheus metrics, and the log of calls.

The rule: neither tokens nor agents' keys are ever written.
"""
