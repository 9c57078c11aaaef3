"""Sessions for the tests of toolpacks, without a server."""

from server.testing import Session

__all__ = ["Session"]
