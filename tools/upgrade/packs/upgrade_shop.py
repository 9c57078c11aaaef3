"""A database and a tree of files, for sessions that two versions of the server serve in turn."""

import sqlite3
from typing import Annotated

from toolpack_server import Database, Depends, Files, TaskEnvironment, Toolpack


class Shop(TaskEnvironment):
    db: Database = Database("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    papers: Files = Files({"readme.txt": "orders below\n"})


toolpack = Toolpack("shop", Shop)


@toolpack.function
def order(
    db: Annotated[sqlite3.Connection, Depends("db")], papers: Annotated[Files, Depends("papers")], item: str
) -> int:
    """Order something, and return the order's number.

    :param item: The item.
    """
    number = db.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
    papers.write_text(f"order-{number}.txt", f"{item}\n")
    return number


@toolpack.function(read_only=True)
def orders(db: Annotated[sqlite3.Connection, Depends("db")]) -> list[str]:
    """Return the ordered items, in order."""
    return [item for (item,) in db.execute("SELECT item FROM orders ORDER BY id")]
