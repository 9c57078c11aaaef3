"""How long tests wait for what doesn't come.

It is their only limit, and there for what hangs: nothing that works takes so long, even on a machine that is
busy with other tests. A test whose subject is a time stops the clock, or sets the server's.
"""

PATIENCE = 120.0  # seconds
