"""Sessions that were stored by version 0.1.0 still load: the names and the format of snapshots stay.

`STORED` was written by that version, before its modules moved into packages. Never write it again to make a test pass:
a stored session of a user would then fail to load.
"""

import base64
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum

from pydantic import BaseModel, PrivateAttr

from server import EmptyEnv, TaskEnvironment
from server.snapshots.classes import ClassTable, fingerprint
from server.snapshots.graph import difference
from server.snapshots.pickling import thaw
from server.snapshots.seal import unseal

KEY = b"the key of this test"


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


def shop():
    item = Item(name="pen", colours={Colour.BLUE})
    item._seen = 3
    return Shop(items=[item, Item(name="ink")], favourite=item, opened_at=datetime(2026, 3, 2, 9, 30, tzinfo=UTC))


STORED = base64.b64decode(
    """
    dG9vbHBhY2stc25hcHNob3QtMX6MMgQX0rJuyniYSSpPZ0hn79TQPl7pUg823JNq7Sm+IGE4ZjdkOTBkZmQ2YjY1MmJjYjU4M2JjYTQ4YTA4ZT
    ZjgAWVlgAAAAAAAABjdG9vbHBhY2sKbmV3CpQwY3Rvb2xwYWNrCmZpbGwKlDBjdG9vbHBhY2sKbWFrZQqUMGN0b29scGFjawpwbGFpbgqUMGN0
    b29scGFjawpjb25zdGFudAqUMGN0b29scGFjawptZW1iZXIKlDBjdG9vbHBhY2sKZmxhZ3MKlDBjdG9vbHBhY2sKZGVmYXVsdGRpY3QKlDCABZ
    WmAQAAAAAAAGgAjBd0ZXN0X3N0b3JlZF9iZWZvcmU6U2hvcJSFlFKUaAFoCih9lCiMBWl0ZW1zlF2UKGgAjBd0ZXN0X3N0b3JlZF9iZWZvcmU6
    SXRlbZSFlFKUaAFoECh9lCiMBG5hbWWUjANwZW6UjAVwcmljZZRoA4wHRGVjaW1hbJSMBDEuNTCUhpRSlIwHY29sb3Vyc5SPlChoBYwZdGVzdF
    9zdG9yZWRfYmVmb3JlOkNvbG91cpSMBEJMVUWUhpRSlJB1To+UKGgZaBKQfZSMBV9zZWVulEsDc3SUhlIwaABoD1KUaAFoIyh9lChoEowDaW5r
    lGgUaBhoGY+UdU6PlChoEpB9lGghSwBzdJSGUjBljAlmYXZvdXJpdGWUaBCMCW9wZW5lZF9hdJRoA4wIZGF0ZXRpbWWUQwoH6gMCCR4AAAAAlG
    gEjAN1dGOUhZRSlIeUUpSMBWVtcHR5lGgAjCFzZXJ2ZXIuZnVuY3Rpb25zX3J1bnRpbWU6RW1wdHlFbnaUhZRSlGgBaDYofZROj5ROdJSGUjB1
    To+UKGgqaAxoK5BOdJSGUjAu
"""
)


def test_a_snapshot_of_version_0_1_0_loads_exactly():
    payload = unseal(STORED, fingerprint([Shop]), KEY)
    assert difference(shop(), thaw(payload, ClassTable([Shop]))) is None


def test_a_snapshot_names_the_base_classes_where_they_have_always_been():
    assert b"server.functions_runtime:EmptyEnv" in STORED
