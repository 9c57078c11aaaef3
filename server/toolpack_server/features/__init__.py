"""Features of the server. Each package contains everything that one feature adds to the core.

The core imports no feature. Entry points in pyproject.toml declare them, and `TOOLPACK_FEATURES` can exclude them.
The server works without any of them, except that some features need another one (`needs`).
"""
