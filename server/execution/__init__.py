"""Run one call: from the bytes of an environment and a function call to an outcome and new bytes.

The rule: no I/O, no clock and no threads. What a call needs is passed in, and it has no effect until its outcome is
committed.
"""
