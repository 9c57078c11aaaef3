"""The toolpack `shelf` of the fault test: a database, and a task whose verdict reports the content of the world.

Each call writes to a journal, so the checks notice a call that is lost, repeated or out of order.
"""

import hashlib
import sqlite3
from typing import Annotated

from pydantic import BaseModel

from toolpack_server import Database, Depends, Evaluation, Rollout, TaskEnvironment, Toolpack

SCHEMA = """
CREATE TABLE item (key TEXT PRIMARY KEY, text TEXT NOT NULL, quantity INTEGER NOT NULL CHECK (quantity >= 0));
CREATE TABLE journal (number INTEGER PRIMARY KEY AUTOINCREMENT, entry TEXT NOT NULL, key TEXT NOT NULL);
CREATE INDEX by_key ON journal (key);
CREATE TRIGGER short AFTER INSERT ON journal BEGIN DELETE FROM journal WHERE number <= new.number - 40; END;
INSERT INTO item VALUES ('first', 'was always there', 5);
"""
ROWS = "SELECT key, text, quantity FROM item UNION ALL SELECT key, entry, number FROM journal ORDER BY 1, 2, 3"


class ShelfEnvironment(TaskEnvironment):
    db: Database = Database(SCHEMA)


class Receipt(BaseModel):
    number: int
    quantity: int


shelf_pack = Toolpack("shelf", ShelfEnvironment)

Db = Annotated[sqlite3.Connection, Depends("db")]


def tables(db: sqlite3.Connection) -> dict[str, dict[str, dict[str, str | int]]]:
    """Return all rows, in the form of the environment's JSON."""
    items = db.execute("SELECT key, text, quantity FROM item")
    journal = db.execute("SELECT number, entry, key FROM journal")
    return {
        "item": {key: {"key": key, "text": text, "quantity": quantity} for key, text, quantity in items},
        "journal": {str(number): {"number": number, "entry": entry, "key": key} for number, entry, key in journal},
    }


def digest(db: sqlite3.Connection) -> str:
    """Return a hash of all rows and of SQLite's integrity check."""
    rows = repr(db.execute(ROWS).fetchall()).encode()
    (check,) = db.execute("PRAGMA integrity_check").fetchone()
    return f"{hashlib.sha256(rows).hexdigest()[:16]} {check}"


def write_entry(db: sqlite3.Connection, entry: str, key: str) -> Receipt:
    number = db.execute("INSERT INTO journal (entry, key) VALUES (?, ?)", (entry, key)).lastrowid
    (quantity,) = db.execute("SELECT quantity FROM item WHERE key = ?", (key,)).fetchone()
    return Receipt(number=number or 0, quantity=quantity)


@shelf_pack.function
def put(db: Db, entry: str, key: str, quantity: int, size: int) -> Receipt:
    """Put things on the shelf.

    :param entry: The note to write.
    :param key: The place on the shelf.
    :param quantity: The quantity.
    :param size: How often the item's text repeats the entry.
    """
    db.execute(
        "INSERT INTO item VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
        "text = excluded.text, quantity = quantity + excluded.quantity",
        (key, f"{entry} " * size, quantity),
    )
    return write_entry(db, entry, key)


@shelf_pack.function
def take(db: Db, entry: str, key: str, quantity: int) -> Receipt:
    """Take things from the shelf, or fail if there are too few.

    :param entry: The note to write.
    :param key: The place on the shelf.
    :param quantity: The quantity.
    """
    if not db.execute("UPDATE item SET quantity = quantity - ? WHERE key = ?", (quantity, key)).rowcount:
        raise KeyError(key)
    return write_entry(db, entry, key)


@shelf_pack.function
def put_and_fail(db: Db, entry: str, key: str) -> Receipt:
    """Put things on the shelf and commit them, then fail. All changes must be lost.

    :param entry: The note to write.
    :param key: The place on the shelf.
    """
    db.execute("INSERT OR REPLACE INTO item VALUES (?, ?, 1000)", (key, f"{entry} " * 100))
    db.commit()
    db.execute("DELETE FROM journal")
    raise ValueError(f"{entry} is not wanted")


@shelf_pack.function(read_only=True)
def find(db: Db, key: str) -> str:
    """Return the item at a place.

    :param key: The place on the shelf.
    """
    row = db.execute("SELECT text, quantity FROM item WHERE key = ?", (key,)).fetchone()
    return f"{row[1]} of {hashlib.sha256(row[0].encode()).hexdigest()[:16]}" if row else "nothing is there"


@shelf_pack.function(read_only=True)
def count(db: Db, entry: str) -> str:
    """Return a hash of all items on the shelf.

    :param entry: A text to repeat.
    """
    return f"{entry}: {digest(db)}"


@shelf_pack.task(
    "look",
    "Do whatever you like.",
    solution=[("find", {"key": "first"})],
    nop_passes=True,
    toolpacks={"ledger": {}, "tally": {}},
)
def look(rollout: Rollout[ShelfEnvironment]) -> Evaluation:
    """Report the world at the beginning, the world now, and the number of calls that changed it."""
    ledger = rollout.environments["ledger"].ledger
    succeeded = [call for call in rollout.calls if call.error is None and call.parent is None]
    changing = [call for call in succeeded if call.function not in {"read", "find", "count"}]
    with rollout.initial.db.connect() as before, rollout.environment.db.connect() as now:
        metrics = {
            "before": digest(before),
            "now": digest(now),
            "length": ledger.length,
            "digest": ledger.digest,
            "changes": len(changing),
        }
    return Evaluation(ledger.length / 1000, passed=True, metrics=metrics)
