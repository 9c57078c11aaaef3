"""Sessions for the tests of toolpacks, as authors import them.

The rule: nothing is defined here. What such a session does is said by all features: see `features/testing.py`.
"""

from server.features.testing import Participant, Session, add_pack_dir

__all__ = ["Participant", "Session", "add_pack_dir"]
