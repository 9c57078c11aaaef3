"""A company's books: a database of any size, and any number of files. Its functions change only a little of them."""

import sqlite3
import subprocess
from typing import Annotated

from toolpack_server import Database, Depends, Files, TaskEnvironment, Toolpack

PRODUCTS = 100
PAPER_BYTES = 1024
SCHEMA = """
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, product INTEGER NOT NULL REFERENCES product, note TEXT NOT NULL);
CREATE INDEX by_product ON orders (product);
"""


class BooksEnvironment(TaskEnvironment):
    db: Database = Database(SCHEMA)
    files: Files = Files()


def build(size: int = 0, papers: int = 0) -> BooksEnvironment:
    """Build the books.

    Args:
        size: Approximate size of the database, in bytes.
        papers: Number of files, of 1 KB each, in folders of 100.
    """

    def fill(connection: sqlite3.Connection) -> None:
        products = ((number, f"product {number}", 10**6) for number in range(PRODUCTS))
        connection.executemany("INSERT INTO product VALUES (?, ?, ?)", products)
        orders = ((number % PRODUCTS, f"{number:0200d}") for number in range(size // 225))
        connection.executemany("INSERT INTO orders (product, note) VALUES (?, ?)", orders)

    contents = {f"{number // 100}/{number}.txt": f"{number:0{PAPER_BYTES}d}" for number in range(papers)}
    return BooksEnvironment(db=Database(SCHEMA, fill=fill), files=Files(contents))


toolpack = Toolpack("books", build)

Db = Annotated[sqlite3.Connection, Depends("db")]
Papers = Annotated[Files, Depends("files")]


@toolpack.function
def order(db: Db, product: int, fails: bool = False) -> int:
    """Place an order: change one row, and add one row with its index entry.

    :param product: The product.
    :param fails: Raise an error at the end.
    """
    db.execute("UPDATE product SET stock = stock - 1 WHERE id = ?", (product,))
    number = db.execute("INSERT INTO orders (product, note) VALUES (?, ?)", (product, "." * 200)).lastrowid
    if fails:
        raise ValueError("on purpose")
    return number


@toolpack.function(read_only=True)
def stock(db: Db, product: int) -> int:
    """Return the stock of a product.

    :param product: The product.
    """
    return db.execute("SELECT stock FROM product WHERE id = ?", (product,)).fetchone()[0]


@toolpack.function
def note(papers: Papers, number: int, text: str) -> int:
    """Write a file.

    :param number: The file's number.
    :param text: The text; it is padded to the file's length.
    """
    return papers.write_text(f"{number // 100}/{number}.txt", text.rjust(PAPER_BYTES))


@toolpack.function
def run(papers: Papers) -> None:
    """Run a command in the directory of the files."""
    with papers.materialize() as folder:
        subprocess.run(["true"], cwd=folder, check=True)


@toolpack.function(read_only=True)
def run_elsewhere() -> None:
    """Run the same command without files."""
    subprocess.run(["true"], check=True)
