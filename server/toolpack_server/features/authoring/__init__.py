"""Tools for authors of toolpacks: `Toolpack`, `from_class`, `check`, and sessions for tests."""
