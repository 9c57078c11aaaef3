"""Assembly of the server: discovery of its features, and creation of all its parts in one place.

Sessions, stores, methods and the other packages below this package don't import it, so they depend on no feature.
"""
