"""Assembly of the server: discovery of its features, and creation of all its parts in one place.

The packages in lower layers don't import this one.
"""
