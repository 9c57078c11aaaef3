"""HTTP: paths, headers, sizes, tokens and connections around the service.

The rule: no package that this one imports knows about HTTP. To refuse a request is to raise `HttpRefusedError`.
"""
