"""HTTP layer around the service: paths, headers, sizes, tokens and connections.

The packages that this package imports don't depend on HTTP. Code that refuses a request raises `HttpRefusedError`.
"""
