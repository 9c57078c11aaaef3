"""Metrics for Prometheus, and the log of calls.

The rule: neither a token nor an agent's key is ever written here.
"""
