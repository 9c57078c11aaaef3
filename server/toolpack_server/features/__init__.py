"""Features of the server. Each package contains everything that one feature adds to the core.

The core imports no feature. Entry points in pyproject.toml declare them, and `TOOLPACK_FEATURES` can exclude them.
A server can do without any feature that no other feature needs (`needs`).
"""
