"""HTTP: paths, headers, sizes, tokens and connections around the service.

No package that this one imports knows about HTTP. To refuse a request is to raise `HttpRefusedError`.
"""
