"""The time limit of tests for an event that doesn't happen.

It is the only time limit, for tests that hang. A working test never takes this long, even on a busy machine. A test
about time stops the clock, or sets the server's.
"""

PATIENCE = 120.0  # seconds
