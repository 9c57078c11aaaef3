"""Sessions: creating, calling, reading, forking, resetting and closing them.

This package defines sessions and the operations on them. `rpc` and `web` receive the requests for operations, and the
engine schedules the operations.
"""
