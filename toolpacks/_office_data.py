"""Initial data of the office: a company that code generates, the same on every machine.

Each list has its own random generator with a fixed seed, so a change of one list doesn't change the other lists.
Amounts are in cents.
"""

import random
import sqlite3
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache
from typing import NamedTuple, TypeVar

T = TypeVar("T")

TODAY = date(2026, 3, 2)
FIRST_DAY = date(2024, 1, 2)
ORDERS, FIRST_ORDER, FIRST_INVOICE = 9000, 100_001, 500_001
PAID_TWICE = 6400  # the 6400th invoice was paid twice

SCHEMA = """
CREATE TABLE company (name TEXT NOT NULL, today TEXT NOT NULL, currency TEXT NOT NULL);
CREATE TABLE customer (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, city TEXT NOT NULL, country TEXT NOT NULL, email TEXT NOT NULL,
    terms_days INTEGER NOT NULL, blocked INTEGER NOT NULL DEFAULT 0 CHECK (blocked IN (0, 1))
);
CREATE TABLE supplier (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, iban TEXT NOT NULL);
CREATE TABLE product (
    id INTEGER PRIMARY KEY, sku TEXT NOT NULL UNIQUE, name TEXT NOT NULL, category TEXT NOT NULL,
    price INTEGER NOT NULL CHECK (price > 0), stock INTEGER NOT NULL CHECK (stock >= 0), reorder_at INTEGER NOT NULL,
    supplier INTEGER NOT NULL REFERENCES supplier
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT, customer INTEGER NOT NULL REFERENCES customer, ordered_on TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'shipped', 'cancelled')), deliver_to TEXT NOT NULL
);
CREATE TABLE order_line (
    order_id INTEGER NOT NULL REFERENCES orders, line INTEGER NOT NULL, product INTEGER NOT NULL REFERENCES product,
    quantity INTEGER NOT NULL CHECK (quantity > 0), price INTEGER NOT NULL, PRIMARY KEY (order_id, line)
) WITHOUT ROWID;
CREATE TABLE invoice (
    id INTEGER PRIMARY KEY AUTOINCREMENT, order_id INTEGER NOT NULL UNIQUE REFERENCES orders,
    customer INTEGER NOT NULL REFERENCES customer, issued_on TEXT NOT NULL, due_on TEXT NOT NULL,
    amount INTEGER NOT NULL, status TEXT NOT NULL CHECK (status IN ('open', 'paid'))
);
CREATE TABLE payment (
    id INTEGER PRIMARY KEY AUTOINCREMENT, invoice INTEGER NOT NULL REFERENCES invoice, received_on TEXT NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0), reference TEXT NOT NULL
);
CREATE TABLE reminder (
    id INTEGER PRIMARY KEY AUTOINCREMENT, invoice INTEGER NOT NULL REFERENCES invoice, sent_on TEXT NOT NULL
);
CREATE TABLE bill (
    number TEXT PRIMARY KEY, supplier INTEGER NOT NULL REFERENCES supplier, received_on TEXT NOT NULL,
    due_on TEXT NOT NULL, amount INTEGER NOT NULL, status TEXT NOT NULL CHECK (status IN ('open', 'paid')),
    paid_on TEXT, paper TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE employee (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, role TEXT NOT NULL, email TEXT NOT NULL);
CREATE TABLE expense (
    id INTEGER PRIMARY KEY, employee INTEGER NOT NULL REFERENCES employee, spent_on TEXT NOT NULL,
    category TEXT NOT NULL, amount INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('submitted', 'approved', 'rejected')), reason TEXT NOT NULL DEFAULT '',
    receipt TEXT NOT NULL
);
CREATE INDEX orders_by_customer ON orders (customer);
CREATE INDEX invoice_by_customer ON invoice (customer, status);
CREATE INDEX payment_by_invoice ON payment (invoice);
CREATE VIEW overdue AS
    SELECT invoice.id, customer.name AS customer, customer.country, due_on, amount,
        CAST(julianday(company.today) - julianday(due_on) AS INTEGER) AS days
    FROM invoice JOIN customer ON customer.id = invoice.customer, company
    WHERE status = 'open' AND due_on < company.today;
"""

_FIRST_NAMES = (
    *("Aurora", "Borealis", "Cascade", "Delta", "Ember", "Falcon", "Granite", "Harbour", "Indigo", "Juniper"),
    *("Keystone", "Lumen", "Meridian", "Nordlys", "Orchard", "Pinnacle", "Quarry", "Rivet", "Summit", "Tundra"),
)
_LAST_NAMES = (
    *("Analytics", "Biotech", "Chemicals", "Diagnostics", "Energy", "Foods", "Glassworks", "Hospital", "Institute"),
    *("Laboratories", "Materials", "Optics", "Pharma", "Research", "Sensors", "Textiles", "University", "Water"),
)
_PLACES = (
    ("Oslo", "Norway"), ("Bergen", "Norway"), ("Malmö", "Sweden"), ("Uppsala", "Sweden"), ("Aarhus", "Denmark"),
    ("Tampere", "Finland"), ("Hamburg", "Germany"), ("Leipzig", "Germany"), ("Graz", "Austria"),
    ("Zürich", "Switzerland"), ("Lyon", "France"), ("Porto", "Portugal"), ("Bologna", "Italy"), ("Gdańsk", "Poland"),
    ("Utrecht", "Netherlands"),
)  # fmt: skip
_STREETS = ("Mill Lane", "Station Road", "Harbour Street", "Park Avenue", "School Street", "Old Market", "Dock 4")
CATEGORIES = {
    "Pumps": "PU", "Scales": "SC", "Centrifuges": "CE", "Microscopes": "MI", "Glassware": "GL", "Heaters": "HE",
    "Filters": "FI", "Sensors": "SE",
}  # fmt: skip
_MODELS = ("Compact", "Precision", "Bench", "Portable", "Digital", "Rugged", "Twin", "Micro", "Rapid", "Silent")
_SUPPLIERS = (
    *("Aurex Metall", "Brightline Optics", "Calder Glass", "Dovre Elektronikk", "Eskilstuna Verk", "Faraday Parts"),
    *("Gotha Pumpen", "Hagen Motoren", "Isola Plast", "Jura Précision", "Kessel Thermo", "Lund Filter"),
)
_EMPLOYEES = (
    ("Ingrid Solberg", "managing director"), ("Tomas Rehák", "sales"), ("Priya Nair", "sales"),
    ("Jonas Lindqvist", "service"), ("Amélie Roux", "service"), ("Kwame Boateng", "purchasing"),
    ("Sofia Castellano", "accounting"), ("Mikkel Dahl", "warehouse"), ("Hanna Vogel", "sales"),
    ("Luca Ferri", "service"), ("Yuki Tanaka", "development"), ("Nadia Haddad", "sales"),
)  # fmt: skip


class Bill(NamedTuple):
    """A supplier's bill: its data in our books and on its paper."""

    number: str
    supplier: int
    received_on: date
    due_on: date
    amount: int
    paid: bool
    paper_amount: int

    @property
    def paper(self) -> str:
        """Path of the bill's paper."""
        return f"bills/{self.received_on:%Y-%m}/{self.number}.txt"


class Expense(NamedTuple):
    """An employee's expense: its data in our books and on the receipt."""

    id: int
    employee: int
    spent_on: date
    category: str
    amount: int
    status: str
    detail: str

    @property
    def receipt(self) -> str:
        """Path of the receipt."""
        return f"receipts/{self.spent_on:%Y-%m}/{self.id}.txt"


class Product(NamedTuple):
    """A product. The price list for April has `april_price`."""

    id: int
    sku: str
    name: str
    category: str
    price: int
    stock: int
    reorder_at: int
    supplier: int
    april_price: int


class Draw:
    """A random generator that draws the same values in every version of Python.

    It uses only `random()`: the algorithms of `randrange` and `choice` may change between versions.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - not used for secrets

    def below(self, limit: int) -> int:
        """Return an integer from 0 to `limit - 1`."""
        return int(self._random.random() * limit)

    def among(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]


def money(cents: int) -> str:
    """Return an amount as text, such as `1234.50`."""
    return f"{cents // 100}.{cents % 100:02d}"


@cache
def customers() -> list[tuple[int, str, str, str, str, int, int]]:
    """Return the customers as rows."""
    draw = Draw(1)
    names = [f"{first} {last}" for last in _LAST_NAMES for first in _FIRST_NAMES]
    rows = []
    for number, name in enumerate(names, 1):
        city, country = draw.among(_PLACES)
        email = f"accounts@{name.lower().replace(' ', '-')}.example"
        rows.append((number, name, city, country, email, draw.among((14, 30, 45)), int(draw.below(40) == 0)))
    return rows


@cache
def suppliers() -> list[tuple[int, str, str]]:
    """Return the suppliers as rows."""
    draw = Draw(2)
    return [(number, name, f"NO{draw.below(10**13):013d}") for number, name in enumerate(_SUPPLIERS, 1)]


@cache
def products() -> list[Product]:
    """Return the products."""
    draw = Draw(3)
    rows: list[Product] = []
    for category, letters in CATEGORIES.items():
        for number in range(30):
            price = 1500 + 50 * draw.below(8000)
            april = price + 50 * (draw.below(12) - 3) * (1 + price // 20_000)
            name = f"{_MODELS[number % 10]} {category.removesuffix('s')} {100 + 10 * number}"
            rows.append(
                Product(
                    len(rows) + 1, f"{letters}-{1000 + 7 * number}", name, category, price, draw.below(160),
                    5 + draw.below(30), 1 + draw.below(len(_SUPPLIERS)), max(april, 1000),
                )
            )  # fmt: skip
    return rows


@cache
def bills() -> list[Bill]:
    """Return the suppliers' bills of this year. Some bills that are due soon have another amount on their paper."""
    draw = Draw(4)
    rows = []
    for number in range(72):
        supplier = 1 + draw.below(len(_SUPPLIERS))
        received = date(2026, 1, 5) + timedelta(days=number * 55 // 72)
        due = received + timedelta(days=draw.among((10, 14, 21, 30)))
        amount = 5000 + 10 * draw.below(90_000)
        wrong = draw.below(5) <= 1 and TODAY <= due <= TODAY + timedelta(days=7)
        letters = _SUPPLIERS[supplier - 1][:2].upper()
        paper_amount = amount + 10 * (1 + draw.below(900)) if wrong else amount
        rows.append(Bill(f"{letters}-{2200 + 3 * number}", supplier, received, due, amount, due < TODAY, paper_amount))
    return rows


_HOTELS = ("Hotel Astor", "Pension Linde", "Grand Central")


@cache
def expenses() -> list[Expense]:
    """Return the employees' expenses of this year."""
    draw = Draw(5)
    rows = []
    for number in range(120):
        spent = date(2026, 1, 7) + timedelta(days=number * 52 // 120)
        category = draw.among(("taxi", "hotel", "meal", "train", "flight"))
        if category == "taxi":
            late = draw.below(2) == 0
            amount = 1500 + 10 * draw.below(500)
            detail = f"Ride at {'22:40' if late else '14:15'}"
        elif category == "hotel":
            nights = 1 + draw.below(3)
            amount = nights * (9000 + 100 * draw.below(90))
            detail = f"{draw.among(_HOTELS)}, {nights} night{'s' if nights > 1 else ''}"
        elif category == "meal":
            amount = 1200 + 10 * draw.below(400)
            detail = "Dinner, 1 person"
        elif category == "flight":
            amount = 9900 + 100 * draw.below(400)
            detail = f"Return flight, {'business' if draw.below(4) == 0 else 'economy'} class"
        else:
            amount = 2000 + 10 * draw.below(900)
            detail = f"{'First' if draw.below(4) == 0 else 'Second'} class"
        status = "submitted" if spent > date(2026, 2, 8) else draw.among(("approved", "approved", "rejected"))
        rows.append(Expense(3001 + number, 1 + draw.below(12), spent, category, amount, status, detail))
    return rows


def fill(connection: sqlite3.Connection) -> None:
    """Fill the tables."""
    connection.execute("INSERT INTO company VALUES ('Fjord Instruments', ?, 'EUR')", (TODAY.isoformat(),))
    connection.executemany("INSERT INTO customer VALUES (?, ?, ?, ?, ?, ?, ?)", customers())
    connection.executemany("INSERT INTO supplier VALUES (?, ?, ?)", suppliers())
    connection.executemany(
        "INSERT INTO product VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [product[:8] for product in products()]
    )
    _fill_orders(connection)
    connection.executemany(
        "INSERT INTO bill VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(bill.number, bill.supplier, bill.received_on.isoformat(), bill.due_on.isoformat(), bill.amount),
                *("paid" if bill.paid else "open", bill.due_on.isoformat() if bill.paid else None, bill.paper),
            )
            for bill in bills()
        ],
    )
    connection.executemany(
        "INSERT INTO employee VALUES (?, ?, ?, ?)",
        [
            (number, name, role, f"{name.split()[0].lower()}@fjord.example")
            for number, (name, role) in enumerate(_EMPLOYEES, 1)
        ],
    )
    connection.executemany(
        "INSERT INTO expense VALUES (?, ?, ?, ?, ?, ?, '', ?)",
        [(*row[:2], row.spent_on.isoformat(), *row[3:6], row.receipt) for row in expenses()],
    )


def _fill_orders(connection: sqlite3.Connection) -> None:
    """Insert two years of orders with their invoices and payments. The invoice `PAID_TWICE` gets two payments."""
    draw = Draw(6)
    buyers, goods = customers(), products()
    orders: list[tuple[object, ...]] = []
    lines: list[tuple[object, ...]] = []
    invoices: list[tuple[object, ...]] = []
    payments: list[tuple[object, ...]] = []
    days = (TODAY - timedelta(days=3) - FIRST_DAY).days
    for number in range(ORDERS):
        order, ordered = FIRST_ORDER + number, FIRST_DAY + timedelta(days=number * days // ORDERS)
        buyer, amount = draw.among(buyers), 0
        for line in range(1, 2 + draw.below(4)):
            product, quantity = draw.among(goods), 1 + draw.below(6)
            lines.append((order, line, product.id, quantity, product.price))
            amount += quantity * product.price
        status = "cancelled" if draw.below(50) == 0 else "shipped" if ordered < TODAY - timedelta(days=9) else "open"
        address = f"{buyer[1]}, goods receipt, {draw.among(_STREETS)} {1 + draw.below(90)}, {buyer[2]}, {buyer[3]}"
        orders.append((order, buyer[0], ordered.isoformat(), status, address))
        issued = ordered + timedelta(days=1 + draw.below(6))
        due, late = issued + timedelta(days=buyer[5]), draw.below(25)
        if status == "shipped":
            invoice = FIRST_INVOICE + len(invoices)
            paid_on = due + timedelta(days=draw.below(12) - 9)
            # One in 25 invoices of recent orders stays unpaid.
            paid = paid_on < TODAY and not (late == 0 and ordered > date(2025, 6, 30))
            invoices.append(
                (invoice, order, buyer[0], issued.isoformat(), due.isoformat(), amount, "paid" if paid else "open")
            )
            if paid:
                reference = f"RF{draw.below(10**8):08d}"
                payments.append((invoice, paid_on.isoformat(), amount, reference))
                if len(invoices) == PAID_TWICE:
                    payments.append((invoice, (paid_on + timedelta(days=4)).isoformat(), amount, reference))
    connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", orders)
    connection.executemany("INSERT INTO order_line VALUES (?, ?, ?, ?, ?)", lines)
    connection.executemany("INSERT INTO invoice VALUES (?, ?, ?, ?, ?, ?, ?)", invoices)
    connection.executemany(
        "INSERT INTO payment (invoice, received_on, amount, reference) VALUES (?, ?, ?, ?)", payments
    )
