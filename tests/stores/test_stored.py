"""Every later version continues each persistent store. The repository has a store of each kind, as first written.

`WRITE_STORED=true pytest tests/stores/test_stored.py` writes the files again. Do this only together with a new number
of the format; otherwise users lose their stores.
"""

import contextlib
import json
import os
import re
import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated

import postgres_server
import pytest
import redis_server
from pydantic import BaseModel, PrivateAttr

from toolpack_server import Depends, EmptyEnv, TaskEnvironment, Toolpack
from toolpack_server.packs.catalog import Catalog

STORED = Path(__file__).with_name("stored")
FILES = {
    "sqlite": STORED / "sqlite-1.sql",
    "redis": STORED / "redis-1.json",
    "postgres": STORED / "postgres-1.json",
}
KINDS = ["sqlite", "redis", pytest.param("postgres", marks=pytest.mark.heavy)]
WRITES = os.environ.get("WRITE_STORED") == "true"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    name: str
    price: Decimal = Decimal("1.50")
    colours: set[Colour] = set()
    _seen: int = PrivateAttr(default=0)


class Shop(TaskEnvironment):
    items: list[Item] = []  # noqa: RUF012 - pydantic copies it
    favourite: Item | None = None
    opened_at: datetime | None = None
    empty: EmptyEnv = EmptyEnv()
    log: list[str] = []  # noqa: RUF012 - as above


def build(opened_in: int = 2026) -> Shop:
    """Open the shop.

    :param opened_in: The year of the opening.
    """
    item = Item(name="pen", colours={Colour.BLUE})
    item._seen = 3
    return Shop(items=[item], favourite=item, opened_at=datetime(opened_in, 3, 2, 9, 30, tzinfo=UTC))


toolpack = Toolpack("shop", build)


@toolpack.function
def note(log: Annotated[list[str], Depends("log")], text: str) -> int:
    """Write into the log.

    :param text: The text.
    """
    log.append(text)
    return len(log)


@toolpack.function(read_only=True)
def look(environment: Annotated[Shop, Depends(lambda environment: environment)]) -> list[bool | int | str]:
    """Return properties that only an exact copy of the environment has."""
    (item, *_) = environment.items
    return [item is environment.favourite, item._seen, str(item.price), str(environment.opened_at), *environment.log]


CATALOG = Catalog({"shop": toolpack})
EXACT = [True, 3, "1.50", "2001-03-02 09:30:00+00:00"]


def fill(bench):
    """Create a session with the versions 0, 1 and 2, and a fork of version 1."""
    parent = bench.create(
        "shop", labels={"role": "parent"}, ttl_seconds=315_360_000, options={"shop": {"opened_in": 2001}}
    )
    for number, text in enumerate(("one", "two")):
        bench.call(parent, "note", {"call_id": f"call {number}"}, text=text)
    (child,) = bench.rpc("fork_session", session_id=parent, version=1, labels={"role": "child"})
    bench.result(child["session_id"], "note", text="other")


def read(bench):
    """Check that both sessions are unchanged, and continue them."""
    sessions = {each["labels"]["role"]: each for each in bench.rpc("list_sessions")}
    assert len(sessions) == 2
    parent, child = (sessions[role]["session_id"] for role in ("parent", "child"))
    assert sessions["child"].get("parent") == {"session_id": parent, "version": 1}
    assert bench.result(parent, "look") == [*EXACT, "one", "two"]
    assert bench.result(child, "look") == [*EXACT, "one", "other"]
    assert bench.call(parent, "note", {"call_id": "call 1"}, text="two") == {"result": 2, "error": None}
    trace = bench.rpc("get_trace", session_id=child, path=True)
    assert [record["kwargs"].get("text") for record in trace] == ["one", "other", None]
    assert [record["session_id"] == child for record in trace] == [False, True, True]
    assert bench.rpc("reset_session", session_id=parent)["version"] == 3
    assert bench.result(parent, "note", text="new") == 1
    assert bench.rpc("fork_session", session_id=child)[0]["toolpacks"] == ["shop"]
    agent_key = sessions["child"]["agent_path"].removeprefix("/agents/")
    assert bench.rpc("run_function", agent_key=agent_key, function="note", kwargs={"text": "agent"})["error"] is None
    assert bench.rpc("close_session", session_id=parent) == 1
    assert bench.result(child, "look") == [*EXACT, "one", "other", "agent"]


class Sqlite:
    def __init__(self, url):
        self.path = url.removeprefix("sqlite:///")

    def dumped(self):
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            numbers = [f"PRAGMA {name} = {database.execute(f'PRAGMA {name}').fetchone()[0]};" for name in NUMBERS]
            return "\n".join([*numbers, *database.iterdump(), ""])

    def load(self, text):
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            database.executescript(text)

    @staticmethod
    def layout(dumped):
        """Return the layout's numbers, and the statements that create tables and indices."""
        statements = dumped.split(";\n")
        return sorted(each.strip() for each in statements if each.lstrip().startswith(("PRAGMA", "CREATE")))


NUMBERS = ("application_id", "user_version")
PASSING = {"beat", "asked", "holder", "noted", "uncounted"}  # of running servers


class Redis:
    """Writes all keys as JSON. Each byte is one character of the JSON."""

    READ = {  # noqa: RUF012 - never changed
        b"string": lambda client, key: text(client.get(key)),
        b"hash": lambda client, key: {text(name): text(value) for name, value in client.hgetall(key).items()},
        b"set": lambda client, key: sorted(map(text, client.smembers(key))),
        b"list": lambda client, key: [*map(text, client.lrange(key, 0, -1))],
        b"zset": lambda client, key: {text(name): score for name, score in client.zrange(key, 0, -1, withscores=True)},
    }

    def __init__(self, url):
        self.client = pytest.importorskip("redis").Redis.from_url(url)

    def dumped(self):
        keys = {key: self.client.type(key) for key in sorted(self.client.keys("*"))}
        dump = {text(key): [text(kind), self.READ[kind](self.client, key)] for key, kind in keys.items()}
        return json.dumps(dump, indent=1) + "\n"

    @staticmethod
    def layout(dumped):
        """Return the kinds of keys, with their types and the structure of their values."""
        kinds = {}
        for name, (kind, value) in json.loads(dumped).items():
            pattern = anonymous(name)
            is_blob = pattern.startswith("toolpack:blob:")  # its format has a separate number
            if not PASSING & {*pattern.split(":")}:
                kinds.setdefault((pattern, kind), set()).update([] if is_blob else parts_of(value))
        return kinds

    def load(self, dumped):
        for name, (kind, value) in json.loads(dumped).items():
            key = raw(name)
            if kind == "string":
                self.client.set(key, raw(value))
            elif kind == "hash":
                self.client.hset(key, mapping={raw(field): raw(each) for field, each in value.items()})
            elif kind == "zset":
                self.client.zadd(key, {raw(member): score for member, score in value.items()})
            else:
                (self.client.sadd if kind == "set" else self.client.rpush)(key, *map(raw, value))


class Postgres:
    """Writes the statements that created the tables, the tables' columns, and the rows as JSON."""

    def __init__(self, url):
        self.url = url

    def ask(self, statement, *parameters):
        return postgres_server.ask(self.url, statement, *parameters)

    def dumped(self):
        from toolpack_server.features.stores.postgres.statements import MIGRATIONS  # noqa: PLC0415 - its driver is an extra

        tables = [name for (name,) in self.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'toolpack'")]
        dump = {
            "made by": MIGRATIONS,
            "layout": [
                *self.ask(
                    "SELECT table_name, column_name, data_type, is_nullable, column_default FROM "
                    "information_schema.columns WHERE table_schema = 'toolpack' ORDER BY table_name, column_name"
                ),
                *self.ask("SELECT indexdef FROM pg_indexes WHERE schemaname = 'toolpack' ORDER BY indexdef"),
            ],
            "rows": {
                name: [row for (row,) in self.ask(f"SELECT to_jsonb(t) FROM toolpack.{name} t ORDER BY t")]
                for name in sorted(tables)
            },
        }
        return json.dumps(dump, indent=1) + "\n"

    def load(self, dumped):
        dump = json.loads(dumped)
        postgres_server.emptied(self.url)
        for step in dump["made by"]:
            self.ask(step)
        for name, rows in dump["rows"].items():
            self.ask(f"DELETE FROM toolpack.{name}")
            into = f"INSERT INTO toolpack.{name} OVERRIDING SYSTEM VALUE SELECT *"
            self.ask(f"{into} FROM jsonb_populate_recordset(NULL::toolpack.{name}, %s::jsonb)", json.dumps(rows))
        self.ask("SELECT setval(pg_get_serial_sequence('toolpack.sessions', 'key'), 1000)")

    @staticmethod
    def layout(dumped):
        return json.loads(dumped)["layout"]


DATABASES = {"sqlite": Sqlite, "redis": Redis, "postgres": Postgres}


def anonymous(name):
    """Return a name with stars in place of ids and digests, because these differ each time."""
    return re.sub(r"[0-9a-f]{16,}", "*", name)


def parts_of(value):
    """Return the structure of a key's value, without the parts that differ each time."""
    if isinstance(value, dict):
        return {(made_of(name), made_of(each)) for name, each in value.items() if name not in PASSING}
    return {made_of(each) for each in (value if isinstance(value, list) else [value])}


def made_of(text):
    """Return the structure of each line's JSON. A line that isn't JSON is returned as text."""
    return "\n".join(types(line) for line in str(text).split("\n"))


def types(line):
    """Return the structure of a line of JSON. A null member counts as a missing one."""
    try:
        value = json.loads(line)
    except ValueError:
        return anonymous(line)
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(anonymous(name) for name, each in value.items() if each is not None))}}}"
    return f"[{', '.join(type(each).__name__ for each in value)}]" if isinstance(value, list) else type(value).__name__


def text(value):
    return value.decode("latin-1")


def raw(value):
    return value.encode("latin-1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_is_continued(kind, store_url, make_bench):
    url = store_url(kind)
    database = DATABASES[kind](url)
    if WRITES:
        with contextlib.closing(make_bench(CATALOG, url)) as bench:
            fill(bench)
        FILES[kind].parent.mkdir(exist_ok=True)
        FILES[kind].write_text(database.dumped(), encoding="utf-8")
        url = store_url(kind) if kind != "sqlite" else url
        Path(url.removeprefix("sqlite:///")).unlink(missing_ok=True)
    database.load(FILES[kind].read_text(encoding="utf-8"))
    read(make_bench(CATALOG, url))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_that_changes_gets_another_number(kind, store_url, make_bench):
    url = store_url(kind)
    database = DATABASES[kind](url)
    with contextlib.closing(make_bench(CATALOG, url)) as bench:
        fill(bench)
    stored_text = FILES[kind].read_text(encoding="utf-8")
    assert database.layout(database.dumped()) == database.layout(stored_text), (
        f"The layout of the {kind} store has changed: give it another number, and write the kept file anew."
    )


def test_files_of_the_present_formats_are_kept():
    assert redis_server.find() is None or all(path.is_file() for path in FILES.values())
    assert b"toolpack_server.functions_runtime:EmptyEnv".hex().upper() in FILES["sqlite"].read_text(encoding="utf-8")
