"""Tools for toolpack authors: `Toolpack`, `Toolpack.from_class`, the command `check`, and sessions for tests."""
