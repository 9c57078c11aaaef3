"""Digests of the code that runs a session's calls: the server's code, and each toolpack's code.

Receipts and the results of `export_bundle` contain the digests. They show whether a replay runs the same code.

The digests are computed when the server starts, because the loaded code stays the same if its files change later. The
digest of a toolpack covers:

- its module, or all files of its package;
- the files and folders with names like `_name` in the same folder.

The digest doesn't cover other imported modules.
"""

import hashlib
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakKeyDictionary

from toolpack_server.features.replay.results import Code, CodeOf
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.sources import OWN

SERVER = Path(__file__).parents[2]


class CodeDigests:
    """The digests of the loaded code."""

    def __init__(self, catalog: Catalog) -> None:
        self._server: CodeOf = {"version": version(OWN), "digest": _server_digest()}
        self._toolpacks: dict[str, CodeOf] = {}
        for name, source in catalog.sources.items():
            digest = digest_files(_files(source.module, source.path), catalog.fingerprints.get(name, ""))
            self._toolpacks[name] = {"digest": digest}
            if source.version:
                self._toolpacks[name]["version"] = source.version

    def of(self, toolpacks: Iterable[str]) -> Code:
        """Return the digests of the server and of these toolpacks. A toolpack without a file has no digest."""
        return {
            "python": ".".join(platform.python_version_tuple()[:2]),
            "server": self._server,
            "toolpacks": {name: self._toolpacks[name] for name in toolpacks if name in self._toolpacks},
        }


_of_catalogs: WeakKeyDictionary[Catalog, CodeDigests] = WeakKeyDictionary()


def code_digests(catalog: Catalog) -> CodeDigests:
    """Return the digests of a catalog's code. They are computed at the first call and cached."""
    if catalog not in _of_catalogs:
        _of_catalogs[catalog] = CodeDigests(catalog)
    return _of_catalogs[catalog]


def digest_files(files: Iterable[tuple[str, Path]], *others: str) -> str:
    """Return the digest of files and further strings.

    Args:
        files: The name and the path of each file. The names are the same on all machines.
    """
    digest = hashlib.sha256()
    for name, path in sorted(files):
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    for text in others:
        digest.update(text.encode())
    return digest.hexdigest()


@cache
def _server_digest() -> str:
    """Return the digest of the server's modules."""
    return digest_files(_inside(SERVER, SERVER.parent, "*.py"))


def _files(module: str, path: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each file that the digest of a toolpack covers.

    Args:
        module: The toolpack's module. Its files are searched for only if `path` is None.
        path: The file or folder of a module in a folder of toolpacks.
    """
    if path is not None:
        folder = path.parent
        yield from _inside(path, folder)
        for sibling in folder.glob("_*"):
            yield from _inside(sibling, folder)
        return
    spec = find_spec(module.partition(".")[0])
    # A package's folder, or else the file of a module.
    locations = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""][:1]
    for location in filter(None, locations):
        yield from _inside(Path(location), Path(location).parent)


def _inside(path: Path, folder: Path, pattern: str = "*") -> Iterator[tuple[str, Path]]:
    """Yield a file, or the files in a folder, each after its name relative to `folder`."""
    for each in [path] if path.is_file() else path.rglob(pattern):
        if each.is_file() and "__pycache__" not in each.parts:
            yield each.relative_to(folder).as_posix(), each
