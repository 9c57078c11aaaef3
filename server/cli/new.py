"""`toolpack-server new`: writes a toolpack to start from, and a test of it that passes; or a package with both.

The rule: no file is ever overwritten.
"""

import importlib.util
import keyword
import shlex
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import click

from server.base.terminal import echo
from server.packs.sources import GROUP, NAMESPACE, OWN

PACKS, TESTS = "packs", "tests"

_TOOLPACK = '''"""A list of things to do: look at it, add to it, tick off what is done."""

from typing import Annotated

from pydantic import BaseModel

from toolpack_server import Depends, TaskEnvironment, Toolpack


class Item(BaseModel):
    text: str
    done: bool = False


class ToDo(TaskEnvironment):
    items: list[Item] = []


def open_list(first: str = "buy milk") -> ToDo:
    """Open a list.

    Args:
        first: The text of its first item.
    """
    return ToDo(items=[Item(text=first)])


toolpack = Toolpack("{name}", open_list)

Items = Annotated[list[Item], Depends("items")]


@toolpack.function(read_only=True)
def list_items(items: Items) -> list[Item]:
    """List everything that there is to do."""
    return items


@toolpack.function
def add_item(items: Items, text: str) -> int:
    """Add something to do, and get its number.

    Args:
        text: What there is to do.
    """
    items.append(Item(text=text))
    return len(items)


@toolpack.function
def tick_off(items: Items, number: int) -> Item:
    """Tick something off.

    Args:
        number: The number of the item; the first is 1.
    """
    if not 1 <= number <= len(items):
        raise ValueError(f"there is no item {{number}}: the list has {{len(items)}}")
    items[number - 1].done = True
    return items[number - 1]
'''

_TEST = '''"""The toolpack `{name}`, called as agents call it."""

import pytest
from {module} import toolpack


@pytest.fixture
def session(toolpack_session):
    return toolpack_session(toolpack, options={{"{name}": {{"first": "write a toolpack"}}}})


def test_items_are_added_and_ticked_off(session):
    assert session.run("add_item", text="serve it") == 2
    session.run("tick_off", number=1)
    assert session.run("list_items") == [
        {{"text": "write a toolpack", "done": True}},
        {{"text": "serve it", "done": False}},
    ]
    assert session.version == 2


def test_a_call_that_fails_changes_nothing(session):
    with pytest.raises(ValueError, match="there is no item 2"):
        session.run("tick_off", number=2)
    assert session.diff() == []
'''

_WITH_DATABASE = '''"""A shop with a database: look at its products, and order some."""

import sqlite3
from typing import Annotated, Any

from toolpack_server import Database, Depends, TaskEnvironment, Toolpack

SCHEMA = """
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT NOT NULL, stock INTEGER NOT NULL CHECK (stock >= 0));
CREATE TABLE orders (id INTEGER PRIMARY KEY, product INTEGER NOT NULL REFERENCES product, quantity INTEGER NOT NULL);
INSERT INTO product VALUES (1, 'pen', 10), (2, 'notebook', 5);
"""


class Shop(TaskEnvironment):
    db: Database = Database(SCHEMA, foreign_keys=True)


toolpack = Toolpack("{name}", Shop)

Db = Annotated[sqlite3.Connection, Depends("db")]


@toolpack.function(read_only=True)
def list_products(db: Db) -> list[dict[str, Any]]:
    """List all products, with how many are in stock."""
    db.row_factory = sqlite3.Row
    return [dict(row) for row in db.execute("SELECT id, name, stock FROM product ORDER BY id")]


@toolpack.function(read_only=True)
def count_orders(db: Db) -> int:
    """Count the orders."""
    return db.execute("SELECT count(*) FROM orders").fetchone()[0]


@toolpack.function
def place_order(db: Db, product: int, quantity: int) -> int:
    """Place an order, and get its number.

    Args:
        product: The number of the product.
        quantity: How many.
    """
    if quantity < 1:
        raise ValueError(f"{{quantity}} can't be ordered: order at least 1")
    db.execute("UPDATE product SET stock = stock - ? WHERE id = ?", (quantity, product))
    cursor = db.execute("INSERT INTO orders (product, quantity) VALUES (?, ?)", (product, quantity))
    return cursor.lastrowid
'''

_TEST_WITH_DATABASE = '''"""The toolpack `{name}`, called as agents call it."""

import sqlite3

import pytest
from {module} import toolpack


@pytest.fixture
def session(toolpack_session):
    return toolpack_session(toolpack)


def test_an_order_reduces_the_stock(session):
    assert session.run("place_order", product=1, quantity=3) == 1
    assert session.run("list_products")[0] == {{"id": 1, "name": "pen", "stock": 7}}
    assert session.version == 1


@pytest.mark.parametrize(("product", "quantity"), [(1, 11), (3, 1)], ids=["out of stock", "unknown"])
def test_an_order_that_fails_changes_nothing(session, product, quantity):
    with pytest.raises(sqlite3.IntegrityError):
        session.run("place_order", product=product, quantity=quantity)
    assert session.run("count_orders") == 0
    assert session.diff() == []
'''


_PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
description = "The toolpack {name} for Toolpack Server."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["{own}>={version}"]

[project.optional-dependencies]
test = ["pytest>=8"]

# What a server finds when this is installed: the name of the toolpack, and the module that has it.
[project.entry-points."{group}"]
{name} = "{module}"

[tool.hatch.build.targets.wheel]
packages = ["src/{module}"]
"""

_README = """# {distribution}

The toolpack `{name}` for Toolpack Server. Install it into the environment that has the server, with `[test]` for its
tests too, and run these:

```sh
{commands}
```

`toolpack-server list` shows it with its version. This writes a wheel into `dist`, to be installed elsewhere:

```sh
{wheel}
```
"""

_TEST_OF_PACKAGE = """

def test_the_server_finds_the_installed_package():
    (found,) = entry_points(group="{group}", name="{name}")
    assert found.load().toolpack is toolpack
"""


class Project(NamedTuple):
    """What is written.

    Attributes:
        texts: The files, by path.
        commands: What to try then.
    """

    texts: dict[Path, str]
    commands: list[str]


@click.command()
@click.option("--database", is_flag=True, help="Write one whose environment is a SQLite database.")
@click.option("--package", is_flag=True, help="Write a package to install and to pass on: the folder `NAME-toolpack`.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder that gets `packs/NAME.py` and `tests/test_NAME.py`, or the package.  [default: the current one]",
)
@click.argument("name")
def new(name: str, directory: Path, *, database: bool, package: bool) -> None:
    """Write a toolpack called NAME to start from, and a test that passes."""
    _check(name)
    project = (_package if package else _module)(name, directory, database=database)
    for path in project.texts:
        if path.exists():
            raise click.ClickException(f"{path} exists already: choose another name, or another folder with --dir.")
    for path, text in project.texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{path} can't be written: {error.strerror}.") from error
        echo(f"wrote {path}")
    echo("Try:", *[f"  {command}" for command in project.commands])


def _module(name: str, directory: Path, *, database: bool) -> Project:
    toolpack, test, first_call = _texts(name, f"{NAMESPACE}.{name}", database=database)
    packs, test_file = directory / PACKS, directory / TESTS / f"test_{name}.py"
    here = _folder_of_commands()
    needed = "" if importlib.util.find_spec("pytest") else f"{here}python -m pip install -q pytest && "
    commands = [
        f"{here}toolpack-server check --pack-dir {packs}",
        f"{here}toolpack-server call --pack-dir {packs} {first_call}",
        f"{needed}{here}python -m pytest --pack-dir {packs} {test_file}",
        f"{here}toolpack-server serve --pack-dir {packs}",
    ]
    return Project({packs / f"{name}.py": toolpack, test_file: test}, commands)


def _package(name: str, directory: Path, *, database: bool) -> Project:
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

    readme = _README.format(
        **names, commands="\n".join(commands("", Path())), wheel="python -m pip wheel -q --no-deps --wheel-dir dist ."
    )
    texts = {
        folder / "pyproject.toml": _PYPROJECT.format(**names, version=version(OWN)),
        folder / "README.md": readme,
        folder / "src" / module / "__init__.py": toolpack,
        folder / TESTS / f"test_{name}.py": test + _TEST_OF_PACKAGE.format(**names),
    }
    return Project(texts, commands(_folder_of_commands(), folder))


def _texts(name: str, module: str, *, database: bool) -> tuple[str, str, str]:
    """Get the text of a toolpack, that of its test, and a function to call first."""
    toolpack, test, first_call = (
        (_WITH_DATABASE, _TEST_WITH_DATABASE, "list_products") if database else (_TOOLPACK, _TEST, "list_items")
    )
    return toolpack.format(name=name), test.format(name=name, module=module), first_call


def _folder_of_commands() -> str:
    """Get what must stand before a command, so that the one beside this one is run: nothing if that is on the PATH."""
    command = Path(sys.argv[0])
    found = shutil.which(command.name)
    if command.name != "toolpack-server" or not command.exists() or (found and command.samefile(found)):
        return ""
    return f"{command.parent}/"


def _check(name: str) -> None:
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise click.UsageError(
            f"{name!r} can't be the name of a Python module: use letters, digits and `_`, and a letter first."
        )
    if len(name) > 64:  # noqa: PLR2004 - the limit of a toolpack's name
        raise click.UsageError(f"{name!r} is too long: use at most 64 characters.")
