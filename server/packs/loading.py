"""Loading toolpacks: finding their modules, importing them and checking them together.

The rule: problems are collected, so that `check` can print all of them; `serve` stops at any.
"""

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from server.errors import RegistrationError, ToolpackUnavailable
from server.functions_runtime import error_text
from server.packs.catalog import Catalog, ambiguous
from server.packs.checks import initial_problem
from server.packs.registration import collected_problems
from server.packs.toolpack import Toolpack

NAMESPACE = "toolpacks"


def load_catalog(pack_dirs: Sequence[Path] = (), names: Sequence[str] = ()) -> Catalog:
    """Load toolpacks and check them.

    Args:
        pack_dirs: Folders with toolpack modules.
        names: The toolpacks to load; if empty, all in `pack_dirs`, or all bundled ones if that is empty too.

    Raises:
        RegistrationError: The first problem; its text says how many more there are.
    """
    catalog, problems = inspect_toolpacks(pack_dirs, names, opt_in_environments=False)
    if problems:
        more = f" ({len(problems) - 1} more: see `toolpack-server check`)" if len(problems) > 1 else ""
        raise RegistrationError(f"{problems[0]}{more}")
    assert catalog is not None  # noqa: S101 - it is None only if there are problems
    return catalog


def inspect_toolpacks(
    pack_dirs: Sequence[Path] = (), names: Sequence[str] = (), *, opt_in_environments: bool = True
) -> tuple[Catalog | None, list[RegistrationError]]:
    """Load toolpacks and collect all problems; the catalog is None if any toolpack can't be loaded.

    A large environment takes long to build, so a server doesn't check those of `opt_in` packs at the start
    (`opt_in_environments=False`): the first session that names one does.
    """
    problems: list[RegistrationError] = []
    token = collected_problems.set(problems)
    try:
        found, notices = _find(pack_dirs, names, problems)
    finally:
        collected_problems.reset(token)
    sound = not problems
    unclear = ambiguous(pack for pack in found.values() if not pack.opt_in)
    if unclear:
        problems.append(RegistrationError(f"{unclear}: rename one of the toolpacks, or make it opt_in."))
    try:
        catalog = Catalog(found, notices)
    except RegistrationError as error:
        return None, [*problems, error]
    problems += [
        problem
        for pack in found.values()
        if (opt_in_environments or not pack.opt_in) and (problem := initial_problem(pack, catalog))
    ]
    return catalog if sound else None, problems


def _find(
    pack_dirs: Sequence[Path], names: Sequence[str], problems: list[RegistrationError]
) -> tuple[dict[str, Toolpack], list[str]]:
    bundled = extend_namespace(pack_dirs, problems)
    folders = list(pack_dirs) if pack_dirs and not names else [*pack_dirs, *bundled]
    found: dict[str, Toolpack] = {}
    unsound: set[str] = set()  # left out of further checks, which would report their problems again
    notices: list[str] = []
    # If packs are named, modules of the same name come first, and the search ends when all packs are found.
    for module_name in sorted(_module_names(folders), key=lambda name: name not in names):
        if names and set(names) <= found.keys():
            break
        known_problems = len(problems)
        module = _import(f"{NAMESPACE}.{module_name}", problems, notices)
        for pack in _toolpacks_of(module):
            if len(problems) > known_problems:
                unsound.add(pack.name)
            other = found.get(pack.name)
            if other is not None and other is not pack:
                problems.append(
                    RegistrationError(f"{_file(module)}: there is a toolpack {pack.name!r} already: rename one.")
                )
            found[pack.name] = pack
        if len(problems) > known_problems:
            sys.modules.pop(f"{NAMESPACE}.{module_name}", None)  # as Python does after a failed import
    if names:
        for name in names:
            if name not in found:
                known = ", ".join(found) or "none"
                hint = f" {' '.join(notices)}" if notices else ""
                problems.append(RegistrationError(f"no module has a toolpack {name!r}; found: {known}.{hint}"))
        found = {name: found[name] for name in names if name in found}
    if not found and not problems:
        notices.append(
            "No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace."
        )
    return {name: pack for name, pack in found.items() if name not in unsound}, notices


def extend_namespace(pack_dirs: Sequence[Path], problems: list[RegistrationError]) -> list[Path]:
    """Put the folders on the namespace package's path, before the bundled ones, and return those.

    Before, so that a folder's `bank.py` may replace the bundled one.
    """
    problems += [
        RegistrationError(f"{folder} is not a folder: correct --pack-dir.")
        for folder in pack_dirs
        if not folder.is_dir()
    ]
    try:
        namespace = importlib.import_module(NAMESPACE)
    except ModuleNotFoundError:
        namespace = sys.modules[NAMESPACE] = ModuleType(NAMESPACE)
        namespace.__path__ = []
    wanted = [str(folder.resolve()) for folder in pack_dirs]
    # Folders of earlier calls stay importable, but aren't bundled.
    bundled = list((namespace.__spec__ and namespace.__spec__.submodule_search_locations) or ())
    # A plain list: Python recomputes a namespace's own path object when sys.path changes, and would lose our folders.
    namespace.__path__ = list(dict.fromkeys([*wanted, *bundled, *namespace.__path__]))
    importlib.invalidate_caches()
    return [Path(folder) for folder in bundled if folder not in wanted]


def _module_names(folders: Iterable[Path]) -> list[str]:
    modules = pkgutil.iter_modules([str(folder) for folder in folders])
    return list(dict.fromkeys(module.name for module in modules if not module.name.startswith("_")))


def _import(name: str, problems: list[RegistrationError], notices: list[str]) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ToolpackUnavailable as unavailable:
        notices.append(str(unavailable))
    except RegistrationError as error:
        problems.append(error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        problems.append(RegistrationError(f"{_where(name, error)}: {error_text(error)}: correct it or move it away."))
    return None


def _where(name: str, error: BaseException) -> str:
    """Get the file and line at which a module's import failed."""
    spec = importlib.util.find_spec(name)
    file = spec.origin if spec else None
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else f"{file or name}"


def _file(module: ModuleType | None) -> str:
    return str(getattr(module, "__file__", None))


def _toolpacks_of(module: ModuleType | None) -> list[Toolpack]:
    bound = vars(module).values() if module else ()
    packs = [value for value in bound if isinstance(value, Toolpack)]
    return list({id(pack): pack for pack in packs}.values())
