"""HTTP layer around the service: paths, headers, sizes, tokens and connections.

No package that this one imports depends on HTTP. Code that refuses a request raises `HttpRefusedError`.
"""
