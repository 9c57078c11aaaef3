"""Execution of one call: restores the environments from bytes, runs the function, and encodes the new bytes.

This package does no I/O and starts no threads. The caller passes in everything that a call needs. A call takes effect
only when the caller commits its outcome.
"""
