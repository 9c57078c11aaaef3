"""A database as JSON: its tables as objects, whose rows have their primary key as name.

JSON is a view, which shows rows and nothing of how they are kept: no index, trigger, view, shadow table of a
virtual table, nor SQLite's own tables.
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

AT_ONCE = 500  # rows that are compared together
PAGE = 100  # rows of a page, unless a client says otherwise
MAX_CHANGES = 100_000  # that a patch says: half a million take a second, and as much memory as a database may
TOO_MANY = f"more than {MAX_CHANGES:,} of its rows and values differ: compare versions that lie closer together"

T = TypeVar("T")
Row = tuple[Any, ...]

_VIRTUAL_COLUMN = 2  # what `table_xinfo` says of one that is computed when it is read


class Column(NamedTuple):
    name: str
    affinity: str  # what SQLite makes of its type: "TEXT", "NUMERIC" or ""


class Reading:
    """The reading of one database.

    A database isn't larger than its limit. What a virtual table shows, or a column that is computed when it is read,
    can be: so that is counted.

    Args:
        max_bytes: How much of that there may be.

    Attributes:
        table: The one that is read, or was last.
    """

    def __init__(self, connection: sqlite3.Connection, max_bytes: int) -> None:
        self.connection = connection
        self.table = ""
        self._max_bytes = self._left = max_bytes

    def counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._left -= sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if self._left < 0:
                raise ValueError(f"what its columns compute has more than {self._max_bytes} bytes")
            yield row


class Table:
    """A table as it is shown.

    Attributes:
        columns: Those that are shown.
        key: The places of those that are its primary key, in the order of that.
    """

    def __init__(self, reading: Reading, name: str, *, has_rowid: bool, is_virtual: bool) -> None:
        self._reading, self._connection = reading, reading.connection
        self.name = reading.table = name
        connection = self._connection
        info = connection.execute(f"PRAGMA table_xinfo({_quoted(name)})").fetchall()
        shown = [each for each in info if each[6] != 1]
        self.columns = [Column(each[1], _affinity(each[2])) for each in shown]
        self._computes = is_virtual or any(each[6] == _VIRTUAL_COLUMN for each in shown)
        keyed = sorted((each[5], place) for place, each in enumerate(shown) if each[5])
        self.key = tuple(place for _, place in keyed)
        names = {column.name.lower() for column in self.columns}
        self.rowid = (
            next((each for each in ("rowid", "_rowid_", "oid") if each not in names), None) if has_rowid else None
        )
        # Only there may a part of the key be missing.
        self._may_lack_key = has_rowid and not all(
            shown[place][3] or (len(self.key) == 1 and str(shown[place][2]).upper() == "INTEGER") for place in self.key
        )
        listed = ", ".join(_quoted(column.name) for column in self.columns)
        self._select = f"SELECT {self.rowid or 'NULL'}, {listed} FROM {_quoted(name)}"  # noqa: S608 - quoted

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.columns, self.key

    def count(self) -> int:
        (count,) = next(self._rows(f"SELECT count(*) FROM {_quoted(self.name)}"))  # noqa: S608 - quoted
        found: int = count
        return found

    def rows(self, where: str = "", given: Sequence[Any] = (), limit: int | None = None) -> Iterator[Row]:
        """Yield rows in the order of their key, each with its rowid before it."""
        order = ", ".join(_quoted(self.columns[place].name) for place in self.key) or self.rowid or "1"
        if self._may_lack_key and self.key:
            order = f"({self._lacks_key()}) DESC, {order}, {self.rowid or 1}"
        ending = f" LIMIT {int(limit)}" if limit is not None else ""
        return self._rows(f"{self._select} {where} ORDER BY {order}{ending}", given)

    def stored(self, ranges: Ranges | None = None) -> Iterator[Sequence[Row]]:
        """Yield the rows in the order in which they are stored, some at once.

        Args:
            ranges: Only those with these rowids, if the table has them; None: all.
        """
        order = self.rowid or ", ".join(_quoted(self.columns[place].name) for place in self.key) or "1"
        where, given = f"WHERE {self.rowid} BETWEEN ? AND ?", [*map(tuple[int, ...], ranges or ())]
        if ranges is None or (ranges and not self.rowid):
            where, given = "", [()]
        for some in given:
            found = self._rows(f"{self._select} {where} ORDER BY {order}", some)
            while chunk := [*islice(found, AT_ONCE)]:
                yield chunk

    def _rows(self, sql: str, given: Sequence[Any] = ()) -> Iterator[Row]:
        self._reading.table = self.name
        found = self._connection.execute(sql, given)
        return self._reading.counted(found) if self._computes else iter(found)

    def key_of(self, row: Row) -> str:
        values = [row[place + 1] for place in self.key]
        if not values:
            return str(row[0])
        if None in values and row[0] is not None:
            return _text({"$rowid": row[0]})
        if len(values) > 1:
            return _text([*map(_value, values)])
        (value,), (place,) = values, self.key
        if isinstance(value, str):
            # Where it could be taken for a number, it is written as a text.
            return value if self.columns[place].affinity == "TEXT" or not _is_json(value) else _text(value)
        return _text(_value(value))

    def shown(self, row: Row) -> dict[str, Any]:
        return {column.name: _value(value) for column, value in zip(self.columns, row[1:], strict=True)}

    def find(self, key: str) -> Row | None:
        """Get the row with a key; None if there is none."""
        for where, given in self._conditions(key, "IS"):
            for row in self.rows(f"WHERE {where}", given):
                if self.key_of(row) == key:
                    return row
        return None

    def after(self, key: str | None, limit: int) -> list[Row]:
        """Get so many rows after a key, in its order.

        Raises:
            InvalidParamsError: The table can have no such key.
        """
        if key is None:
            return [*self.rows(limit=limit)]
        conditions = self._conditions(key, ">")
        if not conditions:
            raise InvalidParamsError(f"after: {key[:200]!r} can't be a key of the table {self.name!r}.")
        where, given = conditions[-1]
        return [*self.rows(f"WHERE {where}", given, limit)]

    def _conditions(self, key: str, compare: str) -> list[tuple[str, list[Any]]]:
        """Get conditions, with their values, that rows with this key, or after it, may fulfil: the likeliest last."""
        parsed = _parsed(key)
        if not self.key:
            return [(f"{self.rowid} {compare} ?", [parsed])] if type(parsed) is int and self.rowid else []
        if isinstance(parsed, dict) and type(parsed.get("$rowid")) is int and self.rowid:
            lacking = self._lacks_key()
            if compare == "IS":
                return [(f"{self.rowid} IS ?", [parsed["$rowid"]])]
            return [(f"(({lacking}) AND {self.rowid} > ?) OR NOT ({lacking})", [parsed["$rowid"]])]
        names = [_quoted(self.columns[place].name) for place in self.key]
        if len(names) > 1:
            if not isinstance(parsed, list) or len(parsed) != len(names):
                return []
            if compare == "IS":
                return [(" AND ".join(f"{name} IS ?" for name in names), [*map(_back, parsed)])]
            return [(f"({', '.join(names)}) > ({', '.join('?' * len(names))})", [*map(_back, parsed)])]
        found = [(f"{names[0]} {compare} ?", [key])]
        is_text = self.columns[self.key[0]].affinity == "TEXT" and not isinstance(parsed, dict)
        if parsed is not None and not is_text:
            found.append((f"{names[0]} {compare} ?", [_back(parsed)]))
        return found

    def _lacks_key(self) -> str:
        return " OR ".join(f"{_quoted(self.columns[place].name)} IS NULL" for place in self.key)


class Tables(Mapping[str, Table]):
    """The tables that are shown, by name, in the order in which they were made; each is looked at when it is got."""

    def __init__(self, reading: Reading) -> None:
        connection = reading.connection
        # A call may have set what rows and texts become.
        connection.row_factory = None
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # not ours: it is called often
        order = {name: place for place, (name,) in enumerate(connection.execute("SELECT name FROM sqlite_schema"))}
        listed = connection.execute("PRAGMA main.table_list").fetchall()
        found = {
            name: (kind == "virtual", bool(without_rowid))
            for schema, name, kind, _columns, without_rowid, _strict in listed
            if schema == "main" and kind in ("table", "virtual") and not name.lower().startswith("sqlite_")
        }
        self._reading = reading
        self._found = dict(sorted(found.items(), key=lambda item: order.get(item[0], -1)))

    def __getitem__(self, name: str) -> Table:
        is_virtual, without_rowid = self._found[name]
        return Table(self._reading, name, has_rowid=not without_rowid, is_virtual=is_virtual)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def view(reading: Reading, max_rows: int) -> dict[str, Any]:
    return {name: _shown(table, max_rows) for name, table in Tables(reading).items()}


def _shown(table: Table, max_rows: int) -> dict[str, Any]:
    found = [*table.rows(limit=max_rows + 1)]
    if len(found) > max_rows:
        return {"$rows": table.count()}
    return {table.key_of(row): table.shown(row) for row in found}


def at(reading: Reading, max_rows: int, steps: Sequence[str], after: str | None, limit: int | None) -> Any:
    """Get what a pointer leads to; see `Volume.at`."""
    found = Tables(reading)
    if not steps:
        if after is not None or limit is not None:
            raise LookupError("no table")
        return view(reading, max_rows)
    table = found[steps[0]]
    if len(steps) == 1:
        if after is None and limit is None:
            return _shown(table, max_rows)
        return {table.key_of(row): table.shown(row) for row in table.after(after, PAGE if limit is None else limit)}
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
    """Get the operations of a JSON Patch that leads from the view of a database to that of another one.

    Args:
        changed: Gets the rowids whose rows may have changed of tables whose first pages it is given; see
            `changed_ranges`.
    """
    olds, news = dict(Tables(before)), dict(Tables(after))
    roots = _roots(before.connection), _roots(after.connection)
    ranges = {name: each for (kind, name, _), each in changed(*roots).items() if kind == "table"}
    found: list[dict[str, Any]] = []
    changes = _ChangeBudget()
    for name, old in olds.items():
        where = f"{path}/{_escaped(name)}"
        new = news.get(name)
        if new is None:
            found.append({"op": "remove", "path": where})
        elif new.shape != old.shape:
            found.append({"op": "replace", "path": where, "value": _all(new, changes)})
        else:
            found += map(changes.counted, _patch_of_rows(old, new, where, ranges.get(name)))
    found += [
        {"op": "add", "path": f"{path}/{_escaped(name)}", "value": _all(new, changes)}
        for name, new in news.items()
        if name not in olds
    ]
    return found


class _ChangeBudget:
    """Counts what a patch says, of all tables together."""

    def __init__(self) -> None:
        self._left = MAX_CHANGES

    def counted(self, change: T) -> T:
        self._left -= 1
        if self._left < 0:
            raise ValueError(TOO_MANY)
        return change


def _all(table: Table, changes: _ChangeBudget) -> dict[str, Any]:
    return {table.key_of(row): table.shown(row) for row in map(changes.counted, table.rows())}


def _roots(connection: sqlite3.Connection) -> Roots:
    """Get the first page of each tree, by what it is for: where that says the same, equal bytes are equal rows."""
    found = connection.execute("SELECT type, name, sql, rootpage FROM sqlite_schema WHERE rootpage > 0")
    return {(kind, name, sql): root for kind, name, sql, root in found} | {("schema", "", ""): 1}


def _patch_of_rows(old: Table, new: Table, path: str, ranges: Ranges | None) -> Iterator[dict[str, Any]]:
    lost, made = changed_rows(old, new, ranges)
    for key, row in lost.items():
        where = f"{path}/{_escaped(key)}"
        if key not in made:
            yield {"op": "remove", "path": where}
            continue
        now = made[key]
        for column, one, other in zip(old.columns, row[1:], now[1:], strict=True):
            if type(one) is not type(other) or one != other:
                yield {"op": "replace", "path": f"{where}/{_escaped(column.name)}", "value": _value(other)}
    for key, row in made.items():
        if key not in lost:
            yield {"op": "add", "path": f"{path}/{_escaped(key)}", "value": new.shown(row)}


def changed_rows(old: Table, new: Table, ranges: Ranges | None) -> tuple[dict[str, Row], dict[str, Row]]:
    """Get the rows, by key, that are only in the one of two tables with the same columns, or differ.

    Args:
        ranges: The rowids that they can have; None: any.
    """
    lost: dict[str, Row] = {}
    made: dict[str, Row] = {}
    pending: dict[Row, None] = {}
    added: dict[Row, None] = {}
    for left, right in zip_longest(old.stored(ranges), new.stored(ranges), fillvalue=()):
        if left == right and [[*map(type, row)] for row in left] == [[*map(type, row)] for row in right]:
            continue
        # Where a row is missing in one of them, the chunks of the other lag behind.
        for row in left:
            marked = _marked(row)
            if marked in added:
                del added[marked]
            else:
                pending[marked] = None
        for row in right:
            marked = _marked(row)
            if marked in pending:
                del pending[marked]
            else:
                added[marked] = None
        if len(pending) + len(added) > MAX_CHANGES:
            raise ValueError(TOO_MANY)
    for marked in pending:
        row = marked[0]
        lost[old.key_of(row)] = row
    for marked in added:
        row = marked[0]
        made[new.key_of(row)] = row
    return lost, made


def _marked(row: Row) -> Row:
    """Get a row with the types of its values: 1 and 1.0 are equal, but not the same."""
    return row, tuple(map(type, row))


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # as in all other JSON
    return value


def _back(shown: Any) -> Any:
    """Get the value that is shown so, in a key."""
    if isinstance(shown, dict):
        try:
            return base64.b64decode(shown.get("$base64", ""), validate=True)
        except (binascii.Error, TypeError):
            return None
    return None if isinstance(shown, list) else shown


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _parsed(key: str) -> Any:
    try:
        found = orjson.loads(key)
    except ValueError:
        return None
    return None if isinstance(found, bool) else found


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _affinity(declared: str) -> str:
    """Get what SQLite makes of a column's declared type (https://www.sqlite.org/datatype3.html, section 3.1)."""
    upper = declared.upper()
    if "INT" in upper:
        return "NUMERIC"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    return "" if not upper or "BLOB" in upper else "NUMERIC"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
