"""Sessions: created, called, read, forked, reset and closed.

What a session means is decided here; when its operations run is the engine's business, and how requests
arrive is the business of `rpc` and `web`.
"""
