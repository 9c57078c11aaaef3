"""Insert many rows with few statements.

The rule: see `statements`. The number of rows in one statement is a power of two, so that few statements are prepared.
"""

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

SIZES = (64, 32, 16, 8, 4, 2, 1)  # rows in one statement


class Insertion:
    """A statement that inserts rows: `{rows}` in it becomes as many as there are, each of so many values."""

    def __init__(self, statement: str, values: int) -> None:
        row = f"({', '.join('?' * values)})"
        self._by_size = {size: statement.format(rows="VALUES " + ", ".join([row] * size)) for size in SIZES}

    def insert(self, writer: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        """Insert rows, in their order; get how many were new."""
        inserted = start = 0
        for size, statement in self._by_size.items():
            while len(rows) - start >= size:
                some = rows[start : start + size]
                inserted += writer.execute(statement, tuple(chain.from_iterable(some))).rowcount
                start += size
        return inserted
