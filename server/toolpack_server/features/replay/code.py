"""The digests of the code that a session's calls run through: the server's, and that of each toolpack.

They are made when a server starts, as it is the code of that moment that runs. Of a toolpack they cover its
module, or all of its package, and what stands beside it in a folder with a name that begins with `_`; not what these
import from elsewhere.
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


class Codes:
    """The digests of what is loaded here."""

    def __init__(self, catalog: Catalog) -> None:
        self._server: CodeOf = {"version": version(OWN), "digest": _server_digest()}
        self._toolpacks: dict[str, CodeOf] = {}
        for name, source in catalog.sources.items():
            digest = digest_of(_files(source.module, source.path), catalog.fingerprints.get(name, ""))
            self._toolpacks[name] = {"digest": digest}
            if source.version:
                self._toolpacks[name]["version"] = source.version

    def of(self, toolpacks: Iterable[str]) -> Code:
        """Get those of the server and of these toolpacks; one that stands in no file has none."""
        return {
            "python": ".".join(platform.python_version_tuple()[:2]),
            "server": self._server,
            "toolpacks": {name: self._toolpacks[name] for name in toolpacks if name in self._toolpacks},
        }


_of_catalogs: WeakKeyDictionary[Catalog, Codes] = WeakKeyDictionary()


def codes_of(catalog: Catalog) -> Codes:
    """Get the digests of what a catalog has loaded, made when they are first asked for."""
    if catalog not in _of_catalogs:
        _of_catalogs[catalog] = Codes(catalog)
    return _of_catalogs[catalog]


def digest_of(files: Iterable[tuple[str, Path]], *others: str) -> str:
    """Get a digest of files, each with the name by which it is known on any machine, and of other texts."""
    found = hashlib.sha256()
    for name, path in sorted(files):
        found.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    for text in others:
        found.update(text.encode())
    return found.hexdigest()


@cache
def _server_digest() -> str:
    return digest_of(_inside(SERVER, SERVER.parent, "*.py"))


def _files(module: str, path: Path | None) -> Iterator[tuple[str, Path]]:
    if path is not None:
        folder = path.parent
        yield from _inside(path, folder)
        for beside in folder.glob("_*"):
            yield from _inside(beside, folder)
        return
    spec = find_spec(module.partition(".")[0])
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""][:1]
    for place in filter(None, places):
        yield from _inside(Path(place), Path(place).parent)


def _inside(path: Path, folder: Path, pattern: str = "*") -> Iterator[tuple[str, Path]]:
    for each in [path] if path.is_file() else path.rglob(pattern):
        if each.is_file() and "__pycache__" not in each.parts:
            yield each.relative_to(folder).as_posix(), each
