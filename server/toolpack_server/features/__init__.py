"""The features: each package is one, and holds all that it adds to the core.

The core imports none of them. `service.py` lists them; without one of them in the list, all else works.
"""
