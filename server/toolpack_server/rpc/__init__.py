"""JSON-RPC 2.0: from the bytes of a request to a method of the sessions and back.

Nothing here knows about HTTP.
"""
