"""A small company's back office. Its books are a database, and its papers are a tree of files.

Fjord Instruments sells instruments to laboratories. Orders are shipped and invoiced, customers pay or are reminded,
suppliers send bills, and employees hand in expenses. In the office it is always 2 March 2026. Amounts are in
euros; in the database they are in cents.
"""

import sqlite3
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, Field

from toolpack_server import Database, Depends, Files, TaskEnvironment, Toolpack
from toolpacks._office_data import SCHEMA, fill, money
from toolpacks._office_papers import papers
from toolpacks._office_shell import Shell
from toolpacks._office_tasks import add_tasks

Amount = Annotated[Decimal, Field(gt=0, max_digits=10, decimal_places=2)]
MAX_ROWS = 200
MAX_CHARACTERS = 1_000_000  # in all rows of a result


class OfficeEnvironment(TaskEnvironment):
    """The books and the papers."""

    books: Database = Database(SCHEMA, fill=fill, foreign_keys=True)
    papers: Files = Files(papers())


toolpack = Toolpack("office", OfficeEnvironment, opt_in=True)

Books = Annotated[sqlite3.Connection, Depends("books")]
Papers = Annotated[Files, Depends("papers")]


class Rows(BaseModel):
    """The rows that a query returned. `more` is true if the query has further rows, which were left out."""

    columns: list[str]
    rows: list[list[Any]]
    more: bool


class Line(BaseModel):
    """The ordered quantity of one product."""

    sku: str = Field(description="The product's SKU.")
    quantity: Annotated[int, Field(ge=1, le=1000)] = Field(description="The number of pieces.")


# Reading


@toolpack.function(read_only=True)
def get_overview(books: Books) -> dict[str, Any]:
    """Get today's date, and the books' tables and views with their columns."""
    name, today = books.execute("SELECT name, today FROM company").fetchone()
    tables = books.execute(
        "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    )
    columns = {
        table: [column for (column,) in books.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        for (table,) in tables.fetchall()
    }
    return {"company": name, "today": today, "tables": columns}


@toolpack.function(read_only=True, timeout_seconds=10)
def sql(books: Books, query: str) -> Rows:
    """Run a read-only query in SQLite's SQL on the books, and return at most 200 rows. Amounts are in cents.

    :param query: The query.
    """
    cursor = books.execute(query)
    rows: list[Any] = []
    budget = MAX_CHARACTERS
    for row in cursor:
        budget -= sum(len(value) for value in row if isinstance(value, str | bytes))
        if budget < 0:
            raise ValueError(f"The rows have more than {MAX_CHARACTERS} characters: ask for fewer or shorter ones.")
        rows.append(row)
        if len(rows) > MAX_ROWS:
            break
    columns = [column[0] for column in cursor.description or ()]
    return Rows(columns=columns, rows=[list(row) for row in rows[:MAX_ROWS]], more=len(rows) > MAX_ROWS)


@toolpack.function(read_only=True)
def find_customers(books: Books, text: str) -> list[dict[str, Any]]:
    """Find at most 20 customers by a part of their name, city or country.

    :param text: Part of the name, city or country.
    """
    customers = books.execute(
        "SELECT id, name, city, country, email, terms_days, blocked FROM customer "
        "WHERE instr(lower(name || ' ' || city || ' ' || country), lower(?)) ORDER BY id LIMIT 20",
        (text,),
    )
    return _as_dicts(customers)


@toolpack.function(read_only=True)
def get_order(books: Books, order_id: int) -> dict[str, Any]:
    """Get an order with its lines, and its invoice if it has one.

    :param order_id: The order's number.
    """
    order = _find_row(books, "orders", order_id)
    lines = books.execute(
        "SELECT sku, name, quantity, order_line.price FROM order_line JOIN product ON product.id = product "
        "WHERE order_id = ? ORDER BY line",
        (order_id,),
    )
    goods = [
        {"sku": sku, "name": name, "quantity": quantity, "price": money(price)} for sku, name, quantity, price in lines
    ]
    row = books.execute("SELECT id, status, amount FROM invoice WHERE order_id = ?", (order_id,)).fetchone()
    invoice = {"id": row[0], "status": row[1], "amount": money(row[2])} if row else None
    return {**order, "lines": goods, "invoice": invoice}


@toolpack.function(read_only=True)
def list_papers(papers: Papers, folder: str = "") -> list[str]:
    """List the contents of a folder of the papers. Names of folders end with `/`.

    :param folder: Path of the folder. Default: the root.
    """
    return [f"{path}/" if papers.is_dir(path) else path for path in papers.iterdir(folder)]


@toolpack.function(read_only=True)
def read_paper(papers: Papers, path: str) -> str:
    """Read a paper.

    :param path: Path of the paper.
    """
    return papers.read_text(path)


# Working with papers


@toolpack.function
def write_paper(papers: Papers, path: str, text: str) -> None:
    """Write a paper. A missing folder is created, and an existing paper is overwritten.

    :param path: Path of the paper.
    :param text: The new text.
    """
    folder = path.strip("/").rpartition("/")[0]
    if folder:
        papers.mkdir(folder, parents=True, exist_ok=True)
    papers.write_text(path, text)


@toolpack.function(timeout_seconds=20)
def shell(papers: Papers, command: str) -> str:
    """Run shell commands in the folder of the papers, and return their output.

    The commands are cat, cp, cut, echo, find, grep, head, ls, mkdir, mv, rm, sort, tail, uniq and wc with their usual
    options. Pipes, `;`, and redirection with `>` and `>>` work, too. grep looks for a text, not for a pattern. No other
    program can run.

    :param command: The command line.
    """
    with papers.materialize() as folder:
        return Shell(folder).run(command)


# Selling


@toolpack.function
def place_order(
    books: Books, customer_id: int, lines: Annotated[list[Line], Field(min_length=1, max_length=50)]
) -> int:
    """Place an order for a customer at today's prices, and return its number.

    :param customer_id: The customer's number.
    :param lines: The ordered products.
    """
    customer = _find_row(books, "customer", customer_id)
    if customer["blocked"]:
        raise ValueError(f"{customer['name']} is blocked: no orders can be placed.")
    order = books.execute(
        "INSERT INTO orders (customer, ordered_on, status, deliver_to) SELECT ?, today, 'open', ? FROM company",
        (customer_id, f"{customer['name']}, {customer['city']}, {customer['country']}"),
    ).lastrowid
    for number, line in enumerate(lines, 1):
        product = _find_product(books, line.sku)
        if product["stock"] < line.quantity:
            raise ValueError(f"There are only {product['stock']} of {line.sku} in stock.")
        books.execute(
            "INSERT INTO order_line VALUES (?, ?, ?, ?, ?)",
            (order, number, product["id"], line.quantity, product["price"]),
        )
    return order or 0


@toolpack.function
def ship_order(books: Books, papers: Papers, order_id: int) -> int:
    """Ship an open order, and return the number of its invoice. The goods leave the stock, and the invoice is written.

    :param order_id: The order's number.
    """
    order = _find_row(books, "orders", order_id)
    if order["status"] != "open":
        raise ValueError(f"Order {order_id} is {order['status']}: only open orders can be shipped.")
    customer = _find_row(books, "customer", order["customer"])
    lines = books.execute("SELECT product, quantity, price FROM order_line WHERE order_id = ?", (order_id,)).fetchall()
    for product, quantity, _ in lines:
        stock = _find_row(books, "product", product)["stock"]
        if stock < quantity:
            raise ValueError(f"There are only {stock} of product {product} in stock, and {quantity} are ordered.")
        books.execute("UPDATE product SET stock = stock - ? WHERE id = ?", (quantity, product))
    amount = sum(quantity * price for _, quantity, price in lines)
    books.execute("UPDATE orders SET status = 'shipped' WHERE id = ?", (order_id,))
    invoice = books.execute(
        "INSERT INTO invoice (order_id, customer, issued_on, due_on, amount, status) "
        "SELECT ?, ?, today, date(today, ?), ?, 'open' FROM company",
        (order_id, order["customer"], f"+{customer['terms_days']} days", amount),
    ).lastrowid
    papers.mkdir("invoices", exist_ok=True)
    papers.write_text(f"invoices/{invoice}.txt", f"Invoice {invoice}\n{customer['name']}\nTotal: {money(amount)} EUR\n")
    return invoice or 0


@toolpack.function
def set_price(books: Books, sku: str, price: Amount) -> None:
    """Set the price of a product.

    :param sku: The product's SKU.
    :param price: The new price in euros.
    """
    _find_product(books, sku)
    books.execute("UPDATE product SET price = ? WHERE sku = ?", (_cents(price), sku))


# Money


@toolpack.function
def record_payment(books: Books, invoice_id: int, amount: Amount, reference: str) -> str:
    """Record a payment that a customer made today. When all payments together cover the invoice, it becomes paid.

    :param invoice_id: The invoice's number.
    :param amount: The amount in euros.
    :param reference: The reference on the payment.
    """
    invoice = _find_row(books, "invoice", invoice_id)
    if invoice["status"] == "paid":
        raise ValueError(f"Invoice {invoice_id} is paid already.")
    books.execute(
        "INSERT INTO payment (invoice, received_on, amount, reference) SELECT ?, today, ?, ? FROM company",
        (invoice_id, _cents(amount), reference),
    )
    (received,) = books.execute("SELECT sum(amount) FROM payment WHERE invoice = ?", (invoice_id,)).fetchone()
    if received >= invoice["amount"]:
        books.execute("UPDATE invoice SET status = 'paid' WHERE id = ?", (invoice_id,))
        return "paid"
    return f"{money(invoice['amount'] - received)} are missing"


@toolpack.function
def send_reminder(books: Books, papers: Papers, invoice_id: int) -> str:
    """Write a reminder of an overdue invoice to the customer, and return the path of the letter.

    :param invoice_id: The invoice's number.
    """
    invoice = _find_row(books, "invoice", invoice_id)
    (today,) = books.execute("SELECT today FROM company").fetchone()
    if invoice["status"] == "paid" or invoice["due_on"] >= today:
        raise ValueError(f"Invoice {invoice_id} is not overdue.")
    customer = _find_row(books, "customer", invoice["customer"])
    books.execute("INSERT INTO reminder (invoice, sent_on) VALUES (?, ?)", (invoice_id, today))
    papers.mkdir("reminders", exist_ok=True)
    (count,) = books.execute("SELECT count(*) FROM reminder WHERE invoice = ?", (invoice_id,)).fetchone()
    path = f"reminders/{invoice_id}-{count}.txt"
    amount = money(invoice["amount"])
    papers.write_text(
        path, f"{customer['name']}\n\nInvoice {invoice_id} of {amount} EUR was due on {invoice['due_on']}.\n"
    )
    return path


@toolpack.function
def pay_bill(books: Books, number: str) -> None:
    """Pay an open bill of a supplier, with the amount in the books.

    :param number: The bill's number.
    """
    bill = books.execute("SELECT status FROM bill WHERE number = ?", (number,)).fetchone()
    if bill is None:
        raise ValueError(f"There is no bill {number}: query the table bill with `sql` to see the numbers.")
    if bill[0] == "paid":
        raise ValueError(f"Bill {number} is paid already.")
    books.execute("UPDATE bill SET status = 'paid', paid_on = (SELECT today FROM company) WHERE number = ?", (number,))


@toolpack.function
def decide_expense(books: Books, expense_id: int, approve: bool, reason: str = "") -> None:
    """Approve or reject an expense that an employee has submitted.

    :param expense_id: The expense's number.
    :param approve: Whether to approve it.
    :param reason: Why, if it is rejected.
    """
    expense = _find_row(books, "expense", expense_id)
    if expense["status"] != "submitted":
        raise ValueError(f"Expense {expense_id} is {expense['status']} already.")
    if not approve and not reason.strip():
        raise ValueError("Give a reason for the rejection.")
    books.execute(
        "UPDATE expense SET status = ?, reason = ? WHERE id = ?",
        ("approved" if approve else "rejected", "" if approve else reason, expense_id),
    )


def _as_dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Return the rows of a query as dictionaries by column."""
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor]


def _find_row(books: sqlite3.Connection, table: str, number: int) -> dict[str, Any]:
    """Return the row of a table with this id, or raise an error."""
    rows = _as_dicts(books.execute(f"SELECT * FROM {table} WHERE id = ?", (number,)))  # noqa: S608 - our own names
    if not rows:
        raise ValueError(f"There is no {table.removesuffix('s')} {number}.")
    return rows[0]


def _find_product(books: sqlite3.Connection, sku: str) -> dict[str, Any]:
    """Return the row of a product, or raise an error that says how to find the SKUs."""
    rows = _as_dicts(books.execute("SELECT * FROM product WHERE sku = ?", (sku,)))
    if not rows:
        raise ValueError(f"There is no product {sku!r}: query the table product with `sql` to see the SKUs.")
    return rows[0]


def _cents(amount: Decimal) -> int:
    return int(amount * 100)


add_tasks(toolpack)
