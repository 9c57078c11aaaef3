"""Loading toolpacks: finding their modules, importing them and checking them together.

Problems are collected, so that `check` can print all of them; `serve` stops at any. Whatever goes wrong in a
module becomes a sentence with file, line and remedy: no module ends the command or keeps it waiting, whatever it does
when it is imported.
"""

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from pydantic.errors import PydanticSchemaGenerationError

from toolpack_server.base.errors import RegistrationError, ToolpackUnavailable
from toolpack_server.base.module_rngs import module_rngs
from toolpack_server.base.settings import Settings
from toolpack_server.functions_runtime import error_text
from toolpack_server.packs.catalog import Catalog, ambiguous
from toolpack_server.packs.checks import initial_problem
from toolpack_server.packs.import_timeout import TimeLimitExceeded, time_limit
from toolpack_server.packs.registration import collected_problems
from toolpack_server.packs.sources import NAMESPACE, OWN, Source, in_folders, installed
from toolpack_server.packs.toolpack import Toolpack

IMPORT_SECONDS = 30.0  # an import that computes or waits for longer belongs into a function


def load_catalog(
    pack_dirs: Sequence[Path] = (),
    names: Sequence[str] = (),
    *,
    build: bool = True,
) -> Catalog:
    """Load the toolpacks of these names and check them; without names, all in `pack_dirs`, else all that are installed.

    Args:
        build: Build the initial environments, to check them; a process that forks others must not.

    Raises:
        RegistrationError: The first problem; its text says how many more there are.
    """
    catalog, problems = inspect_toolpacks(pack_dirs, names, thorough=False, build=build)
    if problems:
        more = f" ({len(problems) - 1} more: see `toolpack-server check`)" if len(problems) > 1 else ""
        raise RegistrationError(f"{problems[0]}{more}")
    assert catalog is not None  # noqa: S101 - it is None only if there are problems
    return catalog


def catalog_of(settings: Settings, *, build: bool = True) -> Catalog:
    """Load the toolpacks of a server with these settings; the rest is as in `load_catalog`."""
    return load_catalog(settings.pack_dir, settings.packs, build=build)


def inspect_toolpacks(
    pack_dirs: Sequence[Path] = (),
    names: Sequence[str] = (),
    *,
    thorough: bool = True,
    build: bool = True,
) -> tuple[Catalog | None, list[RegistrationError]]:
    """Load toolpacks and collect all problems; the catalog is None if any toolpack can't be loaded.

    A large environment takes long to build, so a server doesn't check those of `opt_in` packs at the start
    (`thorough=False`): the first session that names one does.
    """
    problems: list[RegistrationError] = []
    token = collected_problems.set(problems)
    try:
        with module_rngs.noting():
            found, sources, notices = _find(pack_dirs, names, problems)
    finally:
        collected_problems.reset(token)
    sound = not problems
    unclear = ambiguous(pack for pack in found.values() if not pack.opt_in)
    if unclear:
        problems.append(RegistrationError(f"{unclear}: rename one of the toolpacks, or make it opt_in."))
    try:
        catalog = Catalog(found, notices, sources)
    except RegistrationError as error:
        return None, [*problems, error]
    problems += [
        problem
        for pack in found.values()
        if build and (thorough or not pack.opt_in) and (problem := initial_problem(pack, catalog, thorough=thorough))
    ]
    return catalog if sound else None, problems


def _find(
    pack_dirs: Sequence[Path], names: Sequence[str], problems: list[RegistrationError]
) -> tuple[dict[str, Toolpack], dict[str, Source], list[str]]:
    bundled = extend_namespace(pack_dirs, problems)
    only_folders = pack_dirs and not names
    sources = [*in_folders(pack_dirs if only_folders else [*pack_dirs, *bundled], pack_dirs, problems)]
    if not only_folders:
        sources += installed()
    search = _Search(problems)
    # If packs are named, sources of the same name come first, and the search ends when all packs are found.
    for source in sorted(sources, key=lambda source: source.name not in names):
        if names and source.name not in names and set(names) <= search.found.keys():
            break
        search.look_into(source)
    found, notices = search.found, search.notices
    if names:
        for name in names:
            if name not in found:
                if meant := get_close_matches(name, found, 1):
                    problems.append(RegistrationError(f"no module has a toolpack {name!r}: did you mean {meant[0]!r}?"))
                    continue
                known = ", ".join(found) or "none"
                # A module mostly has toolpacks that are called as it is, such as tau2 has tau2-retail.
                likely = [text for module, text in search.unavailable.items() if name.startswith(module)]
                hint = " ".join(["", *(likely or notices)])
                problems.append(RegistrationError(f"no module has a toolpack {name!r}; found: {known}.{hint}"))
        search.excuse_all_but(names)
        found = {name: found[name] for name in names if name in found}
    if not found and not problems:
        notices.append(
            "No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace."
        )
    return {name: pack for name, pack in found.items() if name not in search.unsound}, search.sources, notices


class _Search:
    """A search through modules."""

    def __init__(self, problems: list[RegistrationError]) -> None:
        self.found: dict[str, Toolpack] = {}
        self.sources: dict[str, Source] = {}  # of those that were found
        self.unsound: set[str] = set()  # the names of those that have problems; further checks would report these again
        self.notices: list[str] = []
        self.unavailable: dict[str, str] = {}  # those of the notices that say what a module needs, by its name
        self._problems = problems
        self._broken: list[tuple[list[RegistrationError], set[str]]] = []  # of a module: its problems, its toolpacks

    def look_into(self, source: Source) -> None:
        problems = self._problems
        known = len(problems)
        module = None
        try:
            module = _import(source, problems)
        except ToolpackUnavailable as unavailable:
            self.unavailable[source.name] = str(unavailable)
            self.notices.append(str(unavailable))
        packs = _toolpacks_of(module, source.attribute)
        if module is not None and not packs and len(problems) == known:
            self.notices.append(_without_toolpack(source, module))
        for pack in packs:
            if len(problems) > known:
                self.unsound.add(pack.name)
            other = self.found.get(pack.name)
            if other is not None and other is not pack:
                first = self.sources[pack.name]
                can_go = {each.distribution for each in (first, source) if each.distribution not in {None, OWN}}
                remedy = f"rename one, or uninstall {' or '.join(sorted(map(str, can_go)))}" if can_go else "rename one"
                text = f"{pack.place}: the name {pack.name!r} is taken by {first.place(other.place)}: {remedy}."
                problems.append(RegistrationError(text))
            self.found[pack.name] = pack
            self.sources.setdefault(pack.name, source)
        if len(problems) > known:
            problems[known:] = [RegistrationError(source.place(str(problem))) for problem in problems[known:]]
            sys.modules.pop(source.module, None)  # as Python does after a failed import
            self._broken.append((problems[known:], {pack.name for pack in packs}))

    def excuse_all_but(self, names: Sequence[str]) -> None:
        """Where all of these toolpacks were found, let the problems of modules that have none of them be notices."""
        if not set(names) <= self.found.keys():
            return
        for of_module, its_packs in self._broken:
            if its_packs.isdisjoint(names):
                self._problems[:] = [problem for problem in self._problems if problem not in of_module]
                self.notices += [f"{problem} It isn't loaded, for --packs doesn't name it." for problem in of_module]


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


def _toolpacks_of(module: ModuleType | None, attribute: str) -> list[Toolpack]:
    bound = vars(module) if module else {}
    values = [bound.get(attribute)] if attribute else bound.values()
    return list({id(pack): pack for pack in values if isinstance(pack, Toolpack)}.values())


def _without_toolpack(source: Source, module: ModuleType) -> str:
    place = source.place(module.__file__ or source.module)
    if source.attribute:
        return (
            f"{place}: `{source.attribute}`, which the entry point {source.name!r} names, is no Toolpack: correct it."
        )
    otherwise = "take it out of the entry points" if source.distribution else "begin the file's name with `_`"
    return f"{place}: it binds no Toolpack at module level: add one, or {otherwise}."


def _import(source: Source, problems: list[RegistrationError]) -> ModuleType | None:
    """Import a module; what goes wrong is added to the problems.

    Raises:
        ToolpackUnavailable: Only a package is missing.
    """
    name = source.module
    exit_process = os._exit
    os._exit = _refuse_exit
    try:
        with time_limit(IMPORT_SECONDS, "its import", "do this in a function"):
            return importlib.import_module(name)
    except ToolpackUnavailable:
        raise
    except RegistrationError as error:
        problems.append(error)
    except TimeLimitExceeded as error:
        problems.append(RegistrationError(f"{_where(name, error)}: {error}"))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        problems.append(RegistrationError(f"{_where(name, error)}: {_said(source, error)}"))
    finally:
        os._exit = exit_process
    return None


def _refuse_exit(status: int) -> NoReturn:
    raise SystemExit(status)


def _said(source: Source, error: BaseException) -> str:
    away = "uninstall the distribution" if source.distribution else "move the file out of the folder"
    if isinstance(error, SystemExit):
        return (
            "SystemExit: the module ends the program when it is imported: put such code below "
            f'`if __name__ == "__main__":`, or {away}.'
        )
    if isinstance(error, PydanticSchemaGenerationError):
        return (
            f"{str(error).partition('. Set ')[0]}: an environment holds plain values, models and dataclasses. Keep a "
            "data frame in `Files`, or make such an object in the functions that need it."
        )
    if isinstance(error, SyntaxError) and "null bytes" in str(error):
        return "it holds null bytes: save it as a text file in UTF-8."
    text = " ".join(error_text(error).partition("For further information visit")[0].split()).rstrip(".")
    return f"{text}: {_remedy(source, error)}"


def _remedy(source: Source, error: BaseException) -> str:
    package_of_module = source.module.rpartition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        package, _, module = error.name.rpartition(".")
        folder = Path(_file_of(source.module) or ".").parent
        if (folder / f"{missing}.py").exists():
            return f"import it as {package_of_module}.{missing}."
        if package and package == package_of_module:
            return f"there is no {module}.py beside it: correct the name."
        return "install the package that has it, or correct the name."
    return "correct it or uninstall the distribution." if source.distribution else "correct it or move it away."


def _where(name: str, error: BaseException) -> str:
    """Get the file and line at which a module's import failed."""
    file = _file_of(name)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else f"{file or name}"


def _file_of(name: str) -> str | None:
    with contextlib.suppress(Exception):  # to find a module is to import the packages that it is in
        spec = importlib.util.find_spec(name)
        return spec.origin if spec else None
    return None
