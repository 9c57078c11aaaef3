"""What a feature with a kind of volume may import besides `api`. Executors import it, too, in a moment.

Nothing is defined here.
"""

from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.volumes.volume import Body, Limits, Mount, Volume, VolumeContext
from toolpack_server.volumes.working_copy import Key, WorkingCopy

__all__ = ["Body", "Key", "Limits", "Mount", "Volume", "VolumeContext", "WorkingCopy", "uninterruptible"]
