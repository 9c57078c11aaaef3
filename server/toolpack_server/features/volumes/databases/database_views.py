"""View of a database as JSON, which is an object for each table that contains the table's rows by primary key.

A view shows only rows. It omits indexes, triggers and SQL views, shadow tables of virtual tables, and SQLite's own
tables.
"""

import base64
import binascii
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple, TypeVar

import orjson

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.volumes.databases.database_trees import Ranges, Roots, Tree

CHUNK_ROWS = 500  # number of rows that are compared at once
PAGE_ROWS = 100  # default number of rows in a page of a view
# Maximum number of operations in a patch; 500,000 take a second, and as much memory as the largest database.
MAX_CHANGES = 100_000
TOO_MANY = f"more than {MAX_CHANGES:,} of its rows and values differ: compare versions with fewer changes between them"

T = TypeVar("T")
Row = tuple[Any, ...]

# Values of `hidden` in `table_xinfo`
_HIDDEN_COLUMN = 1  # a column of a virtual table that isn't part of its rows
_VIRTUAL_COLUMN = 2  # a column that is computed when it is read


class Column(NamedTuple):
    """Column of a table in a view."""

    name: str
    affinity: str  # SQLite's affinity for the column's type: "TEXT", "NUMERIC" or ""


class Reading:
    """Connection that reads one database for a view, with a limit of computed bytes.

    Stored rows are never larger than the database. Virtual tables and computed columns can be larger, so their bytes
    are counted.

    Args:
        connection: The connection.
        max_bytes: Maximum number of computed bytes.

    Attributes:
        table: Name of the table that was read last.
    """

    def __init__(self, connection: sqlite3.Connection, max_bytes: int) -> None:
        self.connection = connection
        self.table = ""
        self._max_bytes = self._left = max_bytes

    def limit_bytes(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows, and count their bytes. Raise `ValueError` if the limit is exceeded."""
        for row in rows:
            self._left -= sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if self._left < 0:
                raise ValueError(f"its computed columns have more than {self._max_bytes} bytes")
            yield row


class Table:
    """Table in a view.

    Attributes:
        columns: The visible columns.
        key: Indices of the primary key's columns in `columns`, in the order of the key.
        rowid: A name that SQL can read the rowid by. None if the table has no rowids, or columns hide all such names.
    """

    def __init__(self, reading: Reading, name: str, *, has_rowid: bool, is_virtual: bool) -> None:
        self._reading, self._connection = reading, reading.connection
        self.name = reading.table = name
        connection = self._connection
        info = connection.execute(f"PRAGMA table_xinfo({_quoted(name)})").fetchall()
        visible = [column for column in info if column[6] != _HIDDEN_COLUMN]
        self.columns = [Column(column[1], _affinity(column[2])) for column in visible]
        self._computes = is_virtual or any(column[6] == _VIRTUAL_COLUMN for column in visible)
        key = sorted((column[5], index) for index, column in enumerate(visible) if column[5])
        self.key = tuple(index for _, index in key)
        names = {column.name.lower() for column in self.columns}
        self.rowid = (
            next((name for name in ("rowid", "_rowid_", "oid") if name not in names), None) if has_rowid else None
        )
        # In a table with rowids, a column of the primary key can contain NULL, unless it is NOT NULL or the rowid
        # itself.
        self._may_lack_key = has_rowid and not all(
            visible[index][3] or (len(self.key) == 1 and str(visible[index][2]).upper() == "INTEGER")
            for index in self.key
        )
        listed = ", ".join(_quoted(column.name) for column in self.columns)
        self._select = f"SELECT {self.rowid or 'NULL'}, {listed} FROM {_quoted(name)}"  # noqa: S608 - quoted

    @property
    def shape(self) -> tuple[Any, ...]:
        """The columns and the key. Rows of two tables can be compared if the tables have equal shapes."""
        return self.columns, self.key

    def count(self) -> int:
        """Return the number of rows."""
        (count,) = next(self._rows(f"SELECT count(*) FROM {_quoted(self.name)}"))  # noqa: S608 - quoted
        number: int = count
        return number

    def rows(self, where: str = "", parameters: Sequence[Any] = (), limit: int | None = None) -> Iterator[Row]:
        """Yield rows in the order of their key. The first value of a row is its rowid."""
        order = ", ".join(_quoted(self.columns[index].name) for index in self.key) or self.rowid or "1"
        if self._may_lack_key and self.key:
            order = f"({self._lacks_key()}) DESC, {order}, {self.rowid or 1}"
        ending = f" LIMIT {int(limit)}" if limit is not None else ""
        return self._rows(f"{self._select} {where} ORDER BY {order}{ending}", parameters)

    def stored(self, ranges: Ranges | None = None) -> Iterator[Sequence[Row]]:
        """Yield chunks of rows in the order that the database stores them.

        Args:
            ranges: Rowids of the rows. None means all rows. If the table has no rowids, any range stands for all rows.
        """
        order = self.rowid or ", ".join(_quoted(self.columns[index].name) for index in self.key) or "1"
        where, batches = f"WHERE {self.rowid} BETWEEN ? AND ?", [*map(tuple[int, ...], ranges or ())]
        if ranges is None or (ranges and not self.rowid):
            where, batches = "", [()]
        for parameters in batches:
            rows = self._rows(f"{self._select} {where} ORDER BY {order}", parameters)
            while chunk := [*islice(rows, CHUNK_ROWS)]:
                yield chunk

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Row]:
        """Yield the rows of a query. If the table has computed values, their bytes are limited."""
        self._reading.table = self.name
        rows = self._connection.execute(sql, parameters)
        return self._reading.limit_bytes(rows) if self._computes else iter(rows)

    def key_of(self, row: Row) -> str:
        """Return the key of a row in the view's JSON."""
        values = [row[index + 1] for index in self.key]
        if not values:
            return str(row[0])
        if None in values and row[0] is not None:
            return _text({"$rowid": row[0]})
        if len(values) > 1:
            return _text([*map(_value, values)])
        (value,), (index,) = values, self.key
        if isinstance(value, str):
            # Unless the column's type is text, quote a string that is valid JSON, so that it isn't read as a number.
            return value if self.columns[index].affinity == "TEXT" or not _is_json(value) else _text(value)
        return _text(_value(value))

    def shown(self, row: Row) -> dict[str, Any]:
        """Return the JSON of a row."""
        return {column.name: _value(value) for column, value in zip(self.columns, row[1:], strict=True)}

    def find(self, key: str) -> Row | None:
        """Return the row with a key, or None."""
        for where, parameters in self._conditions(key, "IS"):
            for row in self.rows(f"WHERE {where}", parameters):
                if self.key_of(row) == key:
                    return row
        return None

    def after(self, key: str | None, limit: int) -> list[Row]:
        """Return at most `limit` rows after a key, in the order of the table's key.

        Raises:
            InvalidParamsError: A row of this table can't have this key.
        """
        if key is None:
            return [*self.rows(limit=limit)]
        conditions = self._conditions(key, ">")
        if not conditions:
            raise InvalidParamsError(
                f"after: {key[:200]!r} can't be a key of the table {self.name!r}: use a key that the view shows."
            )
        where, parameters = conditions[-1]
        return [*self.rows(f"WHERE {where}", parameters, limit)]

    def _conditions(self, key: str, compare: str) -> list[tuple[str, list[Any]]]:
        """Return SQL conditions, with parameters, for rows with or after a key.

        If the key can be read in several ways, several conditions are returned. The last condition is the most likely.

        Args:
            compare: SQL's operator: `IS` for the row with the key, or `>` for the rows after the key.
        """
        parsed = _parsed(key)
        if not self.key:
            return [(f"{self.rowid} {compare} ?", [parsed])] if type(parsed) is int and self.rowid else []
        if isinstance(parsed, dict) and type(parsed.get("$rowid")) is int and self.rowid:
            lacks_key = self._lacks_key()
            if compare == "IS":
                return [(f"{self.rowid} IS ?", [parsed["$rowid"]])]
            return [(f"(({lacks_key}) AND {self.rowid} > ?) OR NOT ({lacks_key})", [parsed["$rowid"]])]
        names = [_quoted(self.columns[index].name) for index in self.key]
        if len(names) > 1:
            if not isinstance(parsed, list) or len(parsed) != len(names):
                return []
            if compare == "IS":
                return [(" AND ".join(f"{name} IS ?" for name in names), [*map(_from_view, parsed)])]
            return [(f"({', '.join(names)}) > ({', '.join('?' * len(names))})", [*map(_from_view, parsed)])]
        conditions = [(f"{names[0]} {compare} ?", [key])]
        is_text = self.columns[self.key[0]].affinity == "TEXT" and not isinstance(parsed, dict)
        if parsed is not None and not is_text:
            conditions.append((f"{names[0]} {compare} ?", [_from_view(parsed)]))
        return conditions

    def _lacks_key(self) -> str:
        """Return the SQL condition for rows with NULL in the primary key."""
        return " OR ".join(f"{_quoted(self.columns[index].name)} IS NULL" for index in self.key)


class Tables(Mapping[str, Table]):
    """Visible tables by name, in the order of their creation. Each lookup reads the table's schema."""

    def __init__(self, reading: Reading) -> None:
        connection = reading.connection
        # The function might have set its own factories, so replace them. The text factory is called for each string, so
        # it is a `partial`, which runs in C and is faster than a Python function.
        connection.row_factory = None
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        order = {name: index for index, (name,) in enumerate(connection.execute("SELECT name FROM sqlite_schema"))}
        listed = connection.execute("PRAGMA main.table_list").fetchall()
        tables = {
            name: (kind == "virtual", bool(without_rowid))
            for schema, name, kind, _columns, without_rowid, _strict in listed
            if schema == "main" and kind in ("table", "virtual") and not name.lower().startswith("sqlite_")
        }
        self._reading = reading
        self._tables = dict(sorted(tables.items(), key=lambda item: order.get(item[0], -1)))

    def __getitem__(self, name: str) -> Table:
        is_virtual, without_rowid = self._tables[name]
        return Table(self._reading, name, has_rowid=not without_rowid, is_virtual=is_virtual)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def view(reading: Reading, max_rows: int) -> dict[str, Any]:
    """Return the JSON of a database. A table with more than `max_rows` rows is shown as its number of rows."""
    return {name: _shown(table, max_rows) for name, table in Tables(reading).items()}


def _shown(table: Table, max_rows: int) -> dict[str, Any]:
    """Return the JSON of a table: its rows by key, or only the number of rows if it exceeds `max_rows`."""
    rows = [*table.rows(limit=max_rows + 1)]
    if len(rows) > max_rows:
        return {"$rows": table.count()}
    return {table.key_of(row): table.shown(row) for row in rows}


def at(reading: Reading, max_rows: int, steps: Sequence[str], after: str | None, limit: int | None) -> Any:
    """Return the value at a JSON Pointer; see `Volume.at`."""
    tables = Tables(reading)
    if not steps:
        if after is not None or limit is not None:
            raise LookupError("no table")
        return view(reading, max_rows)
    table = tables[steps[0]]
    if len(steps) == 1:
        if after is None and limit is None:
            return _shown(table, max_rows)
        return {
            table.key_of(row): table.shown(row) for row in table.after(after, PAGE_ROWS if limit is None else limit)
        }
    if after is not None or limit is not None:
        raise LookupError("no table")
    row = table.find(steps[1])
    if row is None:
        raise LookupError(steps[1])
    value: Any = table.shown(row)
    for step in steps[2:]:
        if not isinstance(value, dict) or step not in value:
            raise KeyError(step)
        value = value[step]
    return value


def patch(
    before: Reading,
    after: Reading,
    path: str,
    changed: Callable[[Roots, Roots], Mapping[Tree, Ranges]],
) -> list[dict[str, Any]]:
    """Return the JSON Patch operations that turn the view of one database into the view of another.

    Args:
        before: The first database.
        after: The second database.
        path: JSON Pointer that prefixes the operations' paths.
        changed: Function that accepts the first pages of both databases' trees, and returns the rowids of rows that
            might have changed; see `changed_ranges`.
    """
    olds, news = dict(Tables(before)), dict(Tables(after))
    roots = _roots(before.connection), _roots(after.connection)
    ranges = {name: table_ranges for (kind, name, _), table_ranges in changed(*roots).items() if kind == "table"}
    operations: list[dict[str, Any]] = []
    budget = _ChangeBudget()
    for name, old in olds.items():
        where = f"{path}/{_escaped(name)}"
        new = news.get(name)
        if new is None:
            operations.append({"op": "remove", "path": where})
        elif new.shape != old.shape:
            operations.append({"op": "replace", "path": where, "value": _all_rows(new, budget)})
        else:
            operations += map(budget.spend, _patch_of_rows(old, new, where, ranges.get(name)))
    operations += [
        {"op": "add", "path": f"{path}/{_escaped(name)}", "value": _all_rows(new, budget)}
        for name, new in news.items()
        if name not in olds
    ]
    return operations


class _ChangeBudget:
    """Counter of the operations in a patch for all tables together."""

    def __init__(self) -> None:
        self._remaining = MAX_CHANGES

    def spend(self, change: T) -> T:
        """Count a change, and return it. Raise `ValueError` if there are too many changes."""
        self._remaining -= 1
        if self._remaining < 0:
            raise ValueError(TOO_MANY)
        return change


def _all_rows(table: Table, budget: _ChangeBudget) -> dict[str, Any]:
    """Return the JSON of all rows of a table. Each row counts as a change."""
    return {table.key_of(row): table.shown(row) for row in map(budget.spend, table.rows())}


def _roots(connection: sqlite3.Connection) -> Roots:
    """Return the first page of each tree, by the tree's identity.

    Trees with equal identities store equal rows as equal bytes.
    """
    rows = connection.execute("SELECT type, name, sql, rootpage FROM sqlite_schema WHERE rootpage > 0")
    return {(kind, name, sql): root for kind, name, sql, root in rows} | {("schema", "", ""): 1}


def _patch_of_rows(old: Table, new: Table, path: str, ranges: Ranges | None) -> Iterator[dict[str, Any]]:
    """Yield the JSON Patch operations for the rows of a table."""
    removed, added = changed_rows(old, new, ranges)
    for key, row in removed.items():
        where = f"{path}/{_escaped(key)}"
        if key not in added:
            yield {"op": "remove", "path": where}
            continue
        new_row = added[key]
        for column, one, other in zip(old.columns, row[1:], new_row[1:], strict=True):
            if type(one) is not type(other) or one != other:
                yield {"op": "replace", "path": f"{where}/{_escaped(column.name)}", "value": _value(other)}
    for key, row in added.items():
        if key not in removed:
            yield {"op": "add", "path": f"{path}/{_escaped(key)}", "value": new.shown(row)}


def changed_rows(old: Table, new: Table, ranges: Ranges | None) -> tuple[dict[str, Row], dict[str, Row]]:
    """Compare two tables with the same columns.

    For each table, return the rows that the other table lacks or has changed, by key.

    Args:
        old: The first table.
        new: The second table.
        ranges: Rowids of the rows to compare. None means all rows.
    """
    removed: dict[str, Row] = {}
    added: dict[str, Row] = {}
    only_old: dict[Row, None] = {}
    only_new: dict[Row, None] = {}
    for left, right in zip_longest(old.stored(ranges), new.stored(ranges), fillvalue=()):
        if left == right and [[*map(type, row)] for row in left] == [[*map(type, row)] for row in right]:
            continue
        # If one table lacks a row, the chunks of the two tables are shifted against each other. An equal row can then
        # be in a later chunk, so remember the unmatched rows.
        for row in left:
            typed = _with_types(row)
            if typed in only_new:
                del only_new[typed]
            else:
                only_old[typed] = None
        for row in right:
            typed = _with_types(row)
            if typed in only_old:
                del only_old[typed]
            else:
                only_new[typed] = None
        if len(only_old) + len(only_new) > MAX_CHANGES:
            raise ValueError(TOO_MANY)
    for typed in only_old:
        row = typed[0]
        removed[old.key_of(row)] = row
    for typed in only_new:
        row = typed[0]
        added[new.key_of(row)] = row
    return removed, added


def _with_types(row: Row) -> Row:
    """Return a row with the types of its values, because 1 == 1.0 in Python."""
    return row, tuple(map(type, row))


def _value(value: Any) -> Any:
    """Return the JSON of a value in the database."""
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no infinity and no NaN
    return value


def _from_view(shown: Any) -> Any:
    """Return the database value that a value in a key stands for."""
    if isinstance(shown, dict):
        try:
            return base64.b64decode(shown.get("$base64", ""), validate=True)
        except (binascii.Error, TypeError):
            return None
    return None if isinstance(shown, list) else shown


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _parsed(key: str) -> Any:
    """Return the JSON value of a key. Return None if the key isn't JSON, or if its value is true or false."""
    try:
        value = orjson.loads(key)
    except ValueError:
        return None
    return None if isinstance(value, bool) else value


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _affinity(declared: str) -> str:
    """Return SQLite's affinity for a declared type (https://www.sqlite.org/datatype3.html, section 3.1)."""
    upper = declared.upper()
    if "INT" in upper:
        return "NUMERIC"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    return "" if not upper or "BLOB" in upper else "NUMERIC"


def _quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _escaped(step: str) -> str:
    """Return a step of a JSON Pointer with its special characters escaped (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")
