"""How large a tree of files may be.

The rule: whoever makes a tree larger asks here before it is used. A tree that is too large may become smaller.
"""

import errno

from server.features.parts.files_tree import NOTHING, Size
from server.volumes.volume import Limits


def check_size(size: Size, limits: Limits, before: Size = NOTHING) -> None:
    """Raise `OSError` if a tree is larger than it may be, and than it was before."""
    if before.bytes < size.bytes > limits.files_bytes:
        raise OSError(errno.ENOSPC, f"the files may have {limits.files_bytes} bytes in all (TOOLPACK_MAX_VOLUME_BYTES)")
    if before.entries < size.entries > limits.files:
        raise OSError(
            errno.ENOSPC, f"there may be {limits.files} files, folders and links in all (TOOLPACK_MAX_VOLUME_BYTES)"
        )
