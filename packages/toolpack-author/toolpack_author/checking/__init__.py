"""What `check` finds by running toolpacks' code.

Nothing that is run here stays. Functions are called in a process of its own, on environments that nobody else
has.
"""
