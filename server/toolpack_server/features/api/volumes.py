"""Further public names for features with a kind of volume. The module only re-exports.

Executors import it, too, so it imports nothing slow.
"""

from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.volumes.volume import Body, Limits, Mount, Volume, VolumeContext
from toolpack_server.volumes.working_copy import Key, WorkingCopy

__all__ = ["Body", "Key", "Limits", "Mount", "Volume", "VolumeContext", "WorkingCopy", "uninterruptible"]
