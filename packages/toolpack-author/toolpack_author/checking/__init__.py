"""What `check` finds by running toolpacks' code.

The rule: nothing that is run here stays. Functions are called in a process of its own, on environments that nobody else
has.
"""
