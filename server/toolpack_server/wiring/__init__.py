"""Assembly of the server: discovery of its features, and creation of all its parts in one place.

Sessions, stores, methods and the other packages below don't import this one, so they don't depend on any feature.
"""
