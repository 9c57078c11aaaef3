"""When operations on sessions run, on which thread, in which order, and how they are committed.

The rule: an operation says what to do (`jobs.Operation`); this package decides when. It doesn't know what a function, a
snapshot or JSON-RPC is.
"""
