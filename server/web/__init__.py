"""HTTP: paths, headers, sizes, tokens and connections around the service.

The rule: nothing below this package knows HTTP.
"""
