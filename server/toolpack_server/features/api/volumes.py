"""Further public names for features that provide a kind of volume, such as databases.

This module only re-exports names. Executors also import it, so it imports nothing slow.
"""

from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.volumes.volume import Body, Limits, Mount, Volume, VolumeContext
from toolpack_server.volumes.working_copy import Key, WorkingCopy

__all__ = ["Body", "Key", "Limits", "Mount", "Volume", "VolumeContext", "WorkingCopy", "uninterruptible"]
