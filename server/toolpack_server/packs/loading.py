"""Loader of toolpacks: finds their modules, imports them and checks them together.

Problems are collected, so that `check` can print all of them. `serve` doesn't start if there is a problem. Every
failure of a module becomes a sentence with file, line and remedy. A module can neither end the command nor block it,
even by `os._exit` or an endless loop.
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
from toolpack_server.packs.catalog import Catalog, describe_ambiguity
from toolpack_server.packs.checks import initial_problem
from toolpack_server.packs.import_timeout import TimeLimitExceeded, time_limit
from toolpack_server.packs.registration import collected_problems
from toolpack_server.packs.sources import NAMESPACE, OWN, Source, folder_sources, installed_sources
from toolpack_server.packs.toolpack import Toolpack

IMPORT_SECONDS = 30.0  # time limit for importing one module


def load_catalog(
    pack_dirs: Sequence[Path] = (),
    names: Sequence[str] = (),
    *,
    build: bool = True,
) -> Catalog:
    """Load and check toolpacks.

    Args:
        pack_dirs: Folders with modules of toolpacks.
        names: The names of the toolpacks. Empty: all toolpacks in `pack_dirs`, or without folders all installed
            toolpacks.
        build: Also build and check the initial environments. A process that forks other processes must not do this.

    Raises:
        RegistrationError: There is a problem. The message describes the first problem and counts the others.
    """
    catalog, problems = inspect_toolpacks(pack_dirs, names, thorough=False, build=build)
    if problems:
        more = f" ({len(problems) - 1} more: see `toolpack-server check`)" if len(problems) > 1 else ""
        raise RegistrationError(f"{problems[0]}{more}")
    assert catalog is not None  # noqa: S101 - the catalog is None only if there are problems
    return catalog


def catalog_of(settings: Settings, *, build: bool = True) -> Catalog:
    """Load the toolpacks of a server with these settings. Raises the errors of `load_catalog`."""
    return load_catalog(settings.pack_dir, settings.packs, build=build)


def inspect_toolpacks(
    pack_dirs: Sequence[Path] = (),
    names: Sequence[str] = (),
    *,
    thorough: bool = True,
    build: bool = True,
) -> tuple[Catalog | None, list[RegistrationError]]:
    """Load toolpacks, and return the catalog and all problems. The catalog is None if a toolpack can't be loaded.

    With `thorough=False`, as at a server's start, the environments of `opt_in` toolpacks aren't checked, because a
    large environment takes long to build. The first session that names such a toolpack then fails with the problem.
    """
    problems: list[RegistrationError] = []
    token = collected_problems.set(problems)
    try:
        with module_rngs.register():
            packs, sources, notices = _load_modules(pack_dirs, names, problems)
    finally:
        collected_problems.reset(token)
    is_loaded = not problems
    ambiguity = describe_ambiguity(pack for pack in packs.values() if not pack.opt_in)
    if ambiguity:
        problems.append(RegistrationError(f"{ambiguity}: rename one of the toolpacks, or make it opt_in."))
    try:
        catalog = Catalog(packs, notices, sources)
    except RegistrationError as error:
        return None, [*problems, error]
    problems += [
        problem
        for pack in packs.values()
        if build and (thorough or not pack.opt_in) and (problem := initial_problem(pack, catalog, thorough=thorough))
    ]
    return catalog if is_loaded else None, problems


def _load_modules(
    pack_dirs: Sequence[Path], names: Sequence[str], problems: list[RegistrationError]
) -> tuple[dict[str, Toolpack], dict[str, Source], list[str]]:
    """Import the modules of toolpacks, and add their problems to `problems`.

    Returns:
        The chosen toolpacks without problems, by name; the module of each toolpack; and messages for the operator.
    """
    bundled = extend_namespace(pack_dirs, problems)
    only_folders = pack_dirs and not names
    sources = [*folder_sources(pack_dirs if only_folders else [*pack_dirs, *bundled], pack_dirs, problems)]
    if not only_folders:
        sources += installed_sources()
    search = _Search(problems)
    # If toolpacks are named, modules with these names come first, and the search ends when all toolpacks are found.
    for source in sorted(sources, key=lambda source: source.name not in names):
        if names and source.name not in names and set(names) <= search.packs.keys():
            break
        search.load(source)
    packs, notices = search.packs, search.notices
    if names:
        for name in names:
            if name not in packs:
                if matches := get_close_matches(name, packs, 1):
                    text = f"no module has a toolpack {name!r}: did you mean {matches[0]!r}?"
                    problems.append(RegistrationError(text))
                    continue
                problems.append(RegistrationError(_unknown_name(name, search, pack_dirs)))
        search.ignore_problems_of_others(names)
        packs = {name: packs[name] for name in names if name in packs}
    for pack in [*packs.values()]:
        for companion in pack.companions:
            if packs.setdefault(companion.name, companion) is not companion:
                # An author's toolpack has the same name as a toolpack that the server adds.
                own = packs[companion.name]
                text = (
                    f"{own.location}: sessions with events have a toolpack {own.name!r} of the server: rename this one."
                )
                problems.append(RegistrationError(text))
    if not packs and not problems:
        notices.append(
            "No toolpack was found: put modules into the folder, or name bundled ones: --packs bank,workspace."
        )
    return {name: pack for name, pack in packs.items() if name not in search.faulty}, search.sources, notices


def _unknown_name(name: str, search: "_Search", pack_dirs: Sequence[Path]) -> str:
    """Return the message for a name in `--packs` that matches no toolpack."""
    in_module = [pack for pack, source in search.sources.items() if source.name == name]
    if in_module:
        return f"no toolpack is called {name!r}: the module of this name has {in_module[0]!r}, so use that name."
    # The name of a toolpack usually begins with its module's name: tau2-retail is in tau2.
    likely = [text for source, text in search.unavailable.items() if name.startswith(source.name)]
    # With `--pack-dir`, the toolpack should be in a folder, so don't suggest packages for bundled toolpacks.
    unrelated = [text for source, text in search.unavailable.items() if pack_dirs and source.distribution == OWN]
    hint = " ".join(["", *(likely or [notice for notice in search.notices if notice not in unrelated])])
    return f"no module has a toolpack {name!r}; found: {', '.join(search.packs) or 'none'}.{hint}"


class _Search:
    """A search for toolpacks in modules.

    Attributes:
        packs: The toolpacks found so far, by name.
        sources: The module of each toolpack.
        faulty: Names of toolpacks with problems. They aren't checked further, so that no problem is reported twice.
        notices: Messages for the operator.
        unavailable: The notices about missing packages, by the module that needs them.
    """

    def __init__(self, problems: list[RegistrationError]) -> None:
        self.packs: dict[str, Toolpack] = {}
        self.sources: dict[str, Source] = {}
        self.faulty: set[str] = set()
        self.notices: list[str] = []
        self.unavailable: dict[Source, str] = {}
        self._problems = problems
        self._broken_modules: list[tuple[list[RegistrationError], set[str]]] = []  # problems and toolpacks of each one

    def load(self, source: Source) -> None:
        """Import a module and add its toolpacks and problems."""
        problems = self._problems
        before = len(problems)
        module = None
        try:
            module = _import(source, problems)
        except ToolpackUnavailable as unavailable:
            self.unavailable[source] = str(unavailable)
            self.notices.append(str(unavailable))
        packs = _toolpacks_of(module, source.attribute)
        if module is not None and not packs and len(problems) == before:
            self.notices.append(_no_toolpack_notice(source, module))
        for pack in packs:
            if len(problems) > before:
                self.faulty.add(pack.name)
            other = self.packs.get(pack.name)
            if other is not None and other is not pack:
                first = self.sources[pack.name]
                removable = {each.distribution for each in (first, source) if each.distribution not in {None, OWN}}
                names = " or ".join(sorted(map(str, removable)))
                remedy = f"rename one, or uninstall {names}" if names else "rename one"
                text = f"{pack.location}: the name {pack.name!r} is taken by {first.qualify(other.location)}: {remedy}."
                problems.append(RegistrationError(text))
            self.packs[pack.name] = pack
            self.sources.setdefault(pack.name, source)
        if len(problems) > before:
            problems[before:] = [RegistrationError(source.qualify(str(problem))) for problem in problems[before:]]
            sys.modules.pop(source.module, None)  # as Python does after a failed import
            self._broken_modules.append((problems[before:], {pack.name for pack in packs}))

    def ignore_problems_of_others(self, names: Sequence[str]) -> None:
        """If all these toolpacks were found, turn the problems of other modules into notices."""
        if not set(names) <= self.packs.keys():
            return
        for module_problems, pack_names in self._broken_modules:
            if pack_names.isdisjoint(names):
                self._problems[:] = [problem for problem in self._problems if problem not in module_problems]
                self.notices += [
                    f"{problem} This module is skipped, because --packs doesn't name its toolpacks."
                    for problem in module_problems
                ]


def extend_namespace(pack_dirs: Sequence[Path], problems: list[RegistrationError]) -> list[Path]:
    """Add the folders to the path of the namespace package, and return the folders of bundled toolpacks.

    The added folders come before the bundled ones, so that a user's `bank.py` replaces the bundled `bank`.
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
    own = [str(folder.resolve()) for folder in pack_dirs]
    # Folders that an earlier call added stay importable, but don't count as bundled.
    bundled = list((namespace.__spec__ and namespace.__spec__.submodule_search_locations) or ())
    # Use a plain list, because Python recomputes a namespace's own path object when `sys.path` changes, and would lose
    # the added folders.
    namespace.__path__ = list(dict.fromkeys([*own, *bundled, *namespace.__path__]))
    importlib.invalidate_caches()
    return [Path(folder) for folder in bundled if folder not in own]


def _toolpacks_of(module: ModuleType | None, attribute: str) -> list[Toolpack]:
    """Return the toolpack in a variable of a module, or the toolpacks in all variables if `attribute` is ""."""
    attributes = vars(module) if module else {}
    values = [attributes.get(attribute)] if attribute else attributes.values()
    return list({id(pack): pack for pack in values if isinstance(pack, Toolpack)}.values())


def _no_toolpack_notice(source: Source, module: ModuleType) -> str:
    """Return the message for a module without a toolpack."""
    location = source.qualify(module.__file__ or source.module)
    if source.attribute:
        return (
            f"{location}: the entry point {source.name!r} names `{source.attribute}`, which isn't a Toolpack: correct "
            "one of the two."
        )
    alternative = "remove its entry point" if source.distribution else "begin the file's name with `_`"
    return f"{location}: the module has no Toolpack in a global variable: add one, or {alternative}."


def _import(source: Source, problems: list[RegistrationError]) -> ModuleType | None:
    """Import a module, or add the problem to `problems`.

    Raises:
        ToolpackUnavailable: The module reports a missing package.
    """
    name = source.module
    exit_process = os._exit
    os._exit = _refuse_exit  # a module must not end the server's process
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
        problems.append(RegistrationError(f"{_where(name, error)}: {_import_problem(source, error)}"))
    finally:
        os._exit = exit_process
    return None


def _refuse_exit(status: int) -> NoReturn:
    """Raise `SystemExit`, in place of `os._exit`."""
    raise SystemExit(status)


def _import_problem(source: Source, error: BaseException) -> str:
    """Return what went wrong in an import, and a remedy."""
    alternative = "uninstall the distribution" if source.distribution else "move the file out of the folder"
    if isinstance(error, SystemExit):
        return (
            "SystemExit: the module ends the program when it is imported: put such code below "
            f'`if __name__ == "__main__":`, or {alternative}.'
        )
    if isinstance(error, PydanticSchemaGenerationError):
        return (
            f"{str(error).partition('. Set ')[0]}: an environment holds plain values, models and dataclasses. Keep a "
            "data frame in `Files`, or create such an object in the functions that need it."
        )
    if isinstance(error, SyntaxError) and "null bytes" in str(error):
        return "the file contains null bytes: save it as a text file in UTF-8."
    text = " ".join(error_text(error).partition("For further information visit")[0].split()).rstrip(".")
    return f"{text}: {_remedy(source, error)}"


def _remedy(source: Source, error: BaseException) -> str:
    """Return what the author can do about an error in an import."""
    package_of_module = source.module.rpartition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name:
        missing = error.name.partition(".")[0]
        package, _, module = error.name.rpartition(".")
        folder = Path(_file_of(source.module) or ".").parent
        if (folder / f"{missing}.py").exists():
            return f"import it as {package_of_module}.{missing}."
        if package and package == package_of_module:
            return f"there is no {module}.py in the same folder: correct the name."
        return "install the package that has it, or correct the name."
    alternative = "uninstall the distribution" if source.distribution else "move the file out of the folder"
    return f"correct it, or {alternative}."


def _where(name: str, error: BaseException) -> str:
    """Return the file and line where a module's import failed."""
    file = _file_of(name)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else f"{file or name}"


def _file_of(name: str) -> str | None:
    """Return the file of a module, or None if it isn't found."""
    with contextlib.suppress(Exception):  # `find_spec` imports the packages around the module, which can raise
        spec = importlib.util.find_spec(name)
        return spec.origin if spec else None
    return None
