"""Sessions: creating, calling, reading, forking, resetting and closing them.

This package defines the meaning of a session and its operations. The engine schedules the operations; `rpc` and `web`
receive the requests.
"""
