"""The digests of the code that a session's calls run through: the server's, and that of each toolpack.

The rule: they are made when a server starts, as it is the code of that moment that runs. Of a toolpack they cover its
module, or all of its package, and what stands beside it in a folder with a name that begins with `_`; not what these
import from elsewhere.
"""

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from server.packs.sources import OWN, Source

SERVER = Path(__file__).parents[1]


class Codes:
    """What is loaded here.

    Args:
        sources: Where toolpacks come from, by name.
        fingerprints: Those of the classes of their environments.
    """

    def __init__(self, sources: Mapping[str, Source], fingerprints: Mapping[str, str]) -> None:
        self._server = {"version": version(OWN), "digest": _server_digest()}
        self._toolpacks: dict[str, dict[str, str]] = {}
        for name, source in sources.items():
            digest = digest_of(_files(source), fingerprints.get(name, ""))
            self._toolpacks[name] = {"digest": digest} | ({"version": source.version} if source.version else {})

    def of(self, toolpacks: Iterable[str]) -> Any:
        """Get a `protocol.results.Code` of the server and of these toolpacks; one that stands in no file has none."""
        return {
            "python": ".".join(platform.python_version_tuple()[:2]),
            "server": self._server,
            "toolpacks": {name: self._toolpacks[name] for name in toolpacks if name in self._toolpacks},
        }


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


def _files(source: Source) -> Iterator[tuple[str, Path]]:
    if source.path is not None:
        folder = source.path.parent
        yield from _inside(source.path, folder)
        for path in folder.glob("_*"):
            yield from _inside(path, folder)
        return
    spec = find_spec(source.module.partition(".")[0])
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""][:1]
    for place in filter(None, places):
        yield from _inside(Path(place), Path(place).parent)


def _inside(path: Path, folder: Path, pattern: str = "*") -> Iterator[tuple[str, Path]]:
    for each in [path] if path.is_file() else path.rglob(pattern):
        if each.is_file() and "__pycache__" not in each.parts:
            yield each.relative_to(folder).as_posix(), each
