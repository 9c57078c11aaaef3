"""Where toolpacks come from: modules in folders, and modules that installed distributions name.

None of these modules is imported here.
"""

import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from toolpack_server.base.errors import RegistrationError

NAMESPACE = "toolpacks"
GROUP = "toolpack_server.toolpacks"
"""The group of entry points by which a distribution names its toolpacks."""

OWN = "toolpack-server"
_HERE = Path(__file__).resolve()
# Beside the package where it is installed, and beside its source folder in a clone.
_BUNDLED = next(path for parent in _HERE.parents[2:4] if (path := parent / NAMESPACE).is_dir())


class Source(NamedTuple):
    """A module with toolpacks.

    Attributes:
        name: Of its file, or of its entry point.
        module: What it is imported as.
        attribute: The only one of its toolpacks that counts; "" for all.
        distribution: What was installed with it; None: it is in a folder of the user's.
        version: That of the distribution.
        path: That of the module in a folder.
    """

    name: str
    module: str
    attribute: str = ""
    distribution: str | None = None
    version: str | None = None
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}" if self.distribution else str(self.path)

    def place(self, place: str) -> str:
        """Put the distribution, if there is one, in front of a place in the module."""
        return f"{self}: {place}" if self.distribution else place


def in_folders(
    folders: Iterable[Path], pack_dirs: Sequence[Path], problems: list[RegistrationError]
) -> Iterator[Source]:
    """Get the modules in all folders; two of one name in the user's own folders are a problem."""
    found: dict[str, tuple[Path, str]] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for module in pkgutil.iter_modules([str(folder)]):
            if module.name.startswith("_") or (folder / f"{module.name}.py").is_dir():
                continue
            other, _ = found.setdefault(module.name, (folder, module.name if module.ispkg else f"{module.name}.py"))
            if other != folder and folder in [own.resolve() for own in pack_dirs]:
                problems.append(
                    RegistrationError(
                        f"{folder / module.name}.py: {other / module.name}.py has the same name, so this one would be "
                        "ignored: rename one."
                    )
                )
    for name, (folder, file) in found.items():
        source = Source(name, f"{NAMESPACE}.{name}", path=folder / file)
        yield source._replace(distribution=OWN, version=version(OWN)) if folder == _BUNDLED else source


def installed() -> Iterator[Source]:
    """Get the modules that installed distributions name, in the order of these names."""
    for each in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        distribution = each.dist
        if distribution is not None:
            yield Source(each.name, each.module, each.attr, distribution.name, distribution.version)


def package_folders() -> list[Path]:
    """Get the folders of the packages that installed distributions name; a module that is no package has none."""
    packages = dict.fromkeys(source.module.partition(".")[0] for source in installed())
    specs = [spec for package in packages if (spec := find_spec(package))]
    return [Path(folder) for spec in specs for folder in spec.submodule_search_locations or ()]
