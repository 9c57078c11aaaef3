"""Sessions for tests of toolpacks, without a server."""

from toolpack_server.features.authoring.testing import Participant, Session, add_pack_dir

__all__ = ["Participant", "Session", "add_pack_dir"]
