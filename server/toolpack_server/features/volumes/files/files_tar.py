"""Export of a tree of files as a tar file. Equal trees yield equal bytes."""

import io
import tarfile

from toolpack_server.features.volumes.files.files_tree import FileNode, FolderNode, LinkNode, walk


def to_tar(root: FolderNode) -> bytes:
    """Return a tar file of a tree. All times are 0 (1970), and root owns all entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, node in walk(root):
            entry = tarfile.TarInfo(path)
            if isinstance(node, FileNode):
                entry.size = len(node.content)
                entry.mode = 0o755 if node.executable else 0o644
                tar.addfile(entry, io.BytesIO(node.content))
            elif isinstance(node, LinkNode):
                entry.type, entry.linkname = tarfile.SYMTYPE, node.target
                tar.addfile(entry)
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
    return buffer.getvalue()
