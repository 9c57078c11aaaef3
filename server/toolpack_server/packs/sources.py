"""Sources of toolpacks: modules in folders, and modules named by entry points of installed distributions.

This module finds these modules without importing them.
"""

import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from toolpack_server.base.errors import RegistrationError

NAMESPACE = "toolpacks"
"""The namespace package of modules in folders."""

GROUP = "toolpack_server.toolpacks"
"""The entry point group for a distribution's toolpacks."""

OWN = "toolpack-server"
_HERE = Path(__file__).resolve()
# In an installation, the folder is a sibling of the package. In a clone, it is a sibling of the package's parent.
_BUNDLED = next(path for parent in _HERE.parents[2:4] if (path := parent / NAMESPACE).is_dir())


class Source(NamedTuple):
    """A module with toolpacks.

    Attributes:
        name: The name of its file without the suffix, or of its entry point.
        module: The dotted name to import it by.
        attribute: The module's variable that holds the toolpack to load. "" loads all toolpacks of the module.
        distribution: The distribution that contains the module. None: the module is in a user's folder.
        version: The version of the distribution.
        path: The file or folder of the module. None if an entry point names the module.
    """

    name: str
    module: str
    attribute: str = ""
    distribution: str | None = None
    version: str | None = None
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}" if self.distribution else str(self.path)

    def qualify(self, location: str) -> str:
        """Return a location in the module for a message, with the name of the distribution if there is one."""
        return f"{self}: {location}" if self.distribution else location


def folder_sources(
    folders: Iterable[Path], pack_dirs: Sequence[Path], problems: list[RegistrationError]
) -> Iterator[Source]:
    """Yield the modules in all folders. If several modules have the same name, yield only the first.

    Args:
        folders: The folders, in order of precedence.
        pack_dirs: The user's folders.
        problems: List to which a problem is added for each module in a user's folder that isn't the first of its name.
    """
    modules: dict[str, tuple[Path, str]] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for module in pkgutil.iter_modules([str(folder)]):
            if module.name.startswith("_") or (folder / f"{module.name}.py").is_dir():
                continue
            other, _ = modules.setdefault(module.name, (folder, module.name if module.ispkg else f"{module.name}.py"))
            if other != folder and folder in [own.resolve() for own in pack_dirs]:
                problems.append(
                    RegistrationError(
                        f"{folder / module.name}.py: {other / module.name}.py has the same name, so this file would be "
                        "ignored: rename one."
                    )
                )
    for name, (folder, file) in modules.items():
        source = Source(name, f"{NAMESPACE}.{name}", path=folder / file)
        yield source._replace(distribution=OWN, version=version(OWN)) if folder == _BUNDLED else source


def installed_sources() -> Iterator[Source]:
    """Yield the modules that installed distributions name, sorted by the names of their entry points."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        distribution = point.dist
        if distribution is not None:
            yield Source(point.name, point.module, point.attr, distribution.name, distribution.version)


def package_folders() -> list[Path]:
    """Return the folders of the packages that entry points name. Modules outside packages are omitted."""
    packages = dict.fromkeys(source.module.partition(".")[0] for source in installed_sources())
    specs = [spec for package in packages if (spec := find_spec(package))]
    return [Path(folder) for spec in specs for folder in spec.submodule_search_locations or ()]
