"""Sessions: creating, calling, reading, forking, resetting and closing them.

This package defines what a session and its operations are. The engine schedules the operations, and `rpc` and `web`
receive the requests for them.
"""
