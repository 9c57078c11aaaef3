"""The command `toolpack-server new`, which writes a first toolpack with a passing test, or a package with both.

It fills in the files of `templates/`, and never overwrites a file.
"""

import importlib.util
import keyword
import shlex
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from string import Template

import click

from toolpack_server.base.terminal import echo
from toolpack_server.packs.sources import GROUP, NAMESPACE, OWN

PACKS, TESTS = "packs", "tests"

_TEMPLATES = Path(__file__).parent / "templates"


Project = tuple[dict[Path, str], list[str]]
"""The content of each new file by path, and the commands to try next."""


@click.command()
@click.option("--database", is_flag=True, help="Write a toolpack whose environment is a SQLite database.")
@click.option("--package", is_flag=True, help="Write a package that can be installed and shared, in `NAME-toolpack`.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder for `packs/NAME.py` and `tests/test_NAME.py`, or for the package.  [default: the current one]",
)
@click.argument("name")
def new(name: str, directory: Path, *, database: bool, package: bool) -> None:
    """Write a first toolpack called NAME, with a test that passes."""
    _check(name)
    texts, commands = (_package if package else _module)(name, directory, database=database)
    for path in texts:
        if path.exists():
            raise click.ClickException(f"{path} exists already: choose another name, or another folder with --dir.")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{path} can't be written: {error.strerror}.") from error
        echo(f"wrote {path}")
    echo("Try:", *[f"  {command}" for command in commands])


def _module(name: str, directory: Path, *, database: bool) -> Project:
    """Return the files of a toolpack that is one module in a folder for `--pack-dir`, and the commands to try next."""
    toolpack, test, first_call = _texts(name, f"{NAMESPACE}.{name}", database=database)
    packs, test_file = directory / PACKS, directory / TESTS / f"test_{name}.py"
    here = _folder_of_commands()
    install_pytest = "" if importlib.util.find_spec("pytest") else f"{here}python -m pip install -q pytest && "
    commands = [
        f"{here}toolpack-server check --pack-dir {packs}",
        f"{here}toolpack-server call --pack-dir {packs} {first_call}",
        f"{install_pytest}{here}python -m pytest --pack-dir {packs} {test_file}",
        f"{here}toolpack-server serve --pack-dir {packs}",
    ]
    return {packs / f"{name}.py": toolpack, test_file: test}, commands


def _package(name: str, directory: Path, *, database: bool) -> Project:
    """Return the files of a toolpack that is a Python distribution to install, and the commands to try next."""
    module = f"{name}_toolpack"
    distribution = module.replace("_", "-")
    folder = directory / distribution
    toolpack, test, first_call = _texts(name, module, database=database)
    test = test.replace("import pytest\n", "from importlib.metadata import entry_points\n\nimport pytest\n", 1)
    test = test.replace("import sqlite3\n\nfrom", "import sqlite3\nfrom")
    names = {"name": name, "module": module, "distribution": distribution, "group": GROUP, "own": OWN}

    def commands(here: str, folder: Path) -> list[str]:
        return [
            f"{here}python -m pip install -q -e {shlex.quote(f'{folder}[test]')}",
            f"{here}python -m pytest {shlex.quote(str(folder))}",
            f"{here}toolpack-server check --packs {name}",
            f"{here}toolpack-server call --packs {name} {first_call}",
            f"{here}toolpack-server serve --packs {name}",
        ]

    names |= {"version": version(OWN), "commands": "\n".join(commands("", Path()))}
    texts = {
        folder / "pyproject.toml": _filled("pyproject.toml", **names),
        folder / "README.md": _filled("README.md", **names),
        folder / "src" / module / "__init__.py": toolpack,
        folder / TESTS / f"test_{name}.py": test + _filled("test_installed.py", **names),
    }
    return texts, commands(_folder_of_commands(), folder)


def _texts(name: str, module: str, *, database: bool) -> tuple[str, str, str]:
    """Return the source of a toolpack, the source of its test, and a function to call first."""
    template, first_call = ("shop.py", "list_products") if database else ("list.py", "list_items")
    return _filled(template, name=name), _filled(f"test_{template}", name=name, module=module), first_call


def _filled(template: str, **names: str) -> str:
    """Return the text of a template with these names filled in."""
    return Template((_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")).substitute(names)


def _folder_of_commands() -> str:
    """Return the folder of this command as a prefix for the commands to try, or "" if the folder is on the PATH."""
    command = Path(sys.argv[0])
    on_path = shutil.which(command.name)
    if command.name != "toolpack-server" or not command.exists() or (on_path and command.samefile(on_path)):
        return ""
    return f"{command.parent}/"


def _check(name: str) -> None:
    """Raise a `UsageError` if this can't be the name of a toolpack and of its Python module."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise click.UsageError(
            f"{name!r} can't be the name of a Python module: use letters, digits and `_`, and a letter first."
        )
    if len(name) > 64:  # noqa: PLR2004 - the limit of a toolpack's name
        raise click.UsageError(f"{name!r} is too long: use at most 64 characters.")
