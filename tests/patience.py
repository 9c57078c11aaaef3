"""The time after which a test stops waiting for an event, and fails.

It is the only time limit of the tests, and only ends tests that hang: a working test takes less time, even on a busy
machine. Tests about time stop the clock, or set the server's time limits.
"""

PATIENCE = 120.0  # seconds
