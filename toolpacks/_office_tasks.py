"""Tasks for the office, from easy to hard. In most tasks the agent must read the books or the papers first.

The evaluators check the books, the papers and the agent's answer, not the calls. Rows and papers that a task doesn't
mention must be unchanged.
"""

import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

from toolpack_server import Rollout, Toolpack, says
from toolpacks._office_data import TODAY, Product, bills, money, products
from toolpacks._variants import variants

Calls = list[tuple[str, dict[str, Any]]]
Row = tuple[Any, ...]

DAY = TODAY.isoformat()
EXPENSIVE = 300_000  # cents; scales above this price get the new prices
LAST_DAY = "2026-03-09"  # bills due until this day are paid
REFUND, REFUNDED_CUSTOMER = "31;506400;36399.50", "Keystone Biotech"
TABLES = (
    *("bill", "company", "customer", "employee", "expense", "invoice", "order_line", "orders", "payment", "product"),
    *("reminder", "supplier"),
)


def add_tasks(toolpack: Toolpack) -> None:
    """Register the tasks."""
    _easy(toolpack)
    _medium(toolpack)
    _hard(toolpack)


def _easy(toolpack: Toolpack) -> None:
    @toolpack.task(
        "open-invoices",
        "How many invoices of Quarry Glassworks are open, and what do they come to in all?",
        solution=[
            ("find_customers", {"text": "Quarry Glassworks"}),
            (
                "sql",
                {
                    "query": "SELECT count(*), sum(amount) FROM invoice JOIN customer ON customer.id = customer "
                    "WHERE name = 'Quarry Glassworks' AND status = 'open'"
                },
            ),
        ],
        answer="5 invoices, 104625.50 euros in all",
        tags=["easy", "read"],
        variants=variants("sql", changes=False),
    )
    def open_invoices(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only()
        _says(rollout, "5", "five")
        _says(rollout, "104625.50")

    @toolpack.task(
        "early-payment",
        "Until which day can we deduct 2 % if we pay bill GO-2380? The bill itself says so.",
        solution=[
            ("sql", {"query": "SELECT paper FROM bill WHERE number = 'GO-2380'"}),
            ("read_paper", {"path": "bills/2026-02/GO-2380.txt"}),
        ],
        answer="2026-02-24",
        tags=["easy", "read"],
        variants=variants("read_paper", changes=False),
    )
    def early_payment(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only()
        _says(rollout, "2026-02-24")

    @toolpack.task(
        "record-payment",
        "A payment of 7,631.00 euros has come in for invoice 508353, with the reference 'RF77 0031 9024'. Record it.",
        solution=[("record_payment", {"invoice_id": 508353, "amount": "7631.00", "reference": "RF77 0031 9024"})],
        tags=["easy", "change"],
        variants=variants("record_payment"),
    )
    def record_payment(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only("payment", "invoice")
        new = [(*row[1:-1], "".join(row[-1].upper().split())) for row in changes.new("payment")]
        rollout.check("the payment is recorded", new == [(508353, DAY, 763100, "RF7700319024")], str(new))
        paid = [(row[0], row[-1]) for row in changes.new("invoice")]
        rollout.check("its invoice is paid, and no other", paid == [(508353, "paid")], str(paid))

    @toolpack.task(
        "approve-taxi",
        "I have seen the receipt of Priya Nair's taxi of 23 February: approve it.",
        solution=[
            (
                "sql",
                {
                    "query": "SELECT expense.id FROM expense JOIN employee ON employee.id = employee "
                    "WHERE name = 'Priya Nair' AND category = 'taxi' AND spent_on = '2026-02-23'"
                },
            ),
            ("decide_expense", {"expense_id": 3110, "approve": True}),
        ],
        tags=["easy", "change"],
        variants=variants("decide_expense"),
    )
    def approve_taxi(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only("expense")
        _decided(rollout, changes, {3110: "approved"})


def _medium(toolpack: Toolpack) -> None:
    @toolpack.task(
        "best-month",
        "In which month of 2025 have we invoiced most, and how much was it?",
        solution=[
            (
                "sql",
                {
                    "query": "SELECT substr(issued_on, 1, 7) AS month, sum(amount) FROM invoice "
                    "WHERE month LIKE '2025-%' GROUP BY month ORDER BY 2 DESC LIMIT 1"
                },
            )
        ],
        answer="July 2025: 6173587.50 euros",
        tags=["medium", "read"],
        variants=variants("sql", changes=False),
    )
    def best_month(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only()
        _says(rollout, "July", "Jul", "2025-07", "7/2025", "07.2025")
        _says(rollout, "6173587.50")

    @toolpack.task(
        "april-prices",
        "Take the prices of our scales from the list prices/2026-04.csv, but only of those that cost more than 3,000 "
        "euros today.",
        solution=_april_prices,
        tags=["medium", "change"],
        variants=variants("set_price"),
    )
    def april_prices(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only("product")
        expected = {product.sku: product.april_price for product in _expensive_scales()}
        actual = {row[1]: row[4] for row in changes.new("product")}
        rollout.check("the expensive scales have the new prices, and no other product", actual == expected, str(actual))

    @toolpack.task(
        "remind-norway",
        "Send a reminder for each invoice of our customers in Norway that is overdue for more than 30 days.",
        solution=[
            ("sql", {"query": "SELECT id FROM overdue WHERE country = 'Norway' AND days > 30"}),
            *(("send_reminder", {"invoice_id": number}) for number in (506673, 507207, 507926, 508194)),
        ],
        tags=["medium", "change"],
        variants=variants("send_reminder"),
    )
    def remind_norway(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        reminded = sorted(row[1:] for row in changes.new("reminder"))
        expected = [(number, DAY) for number in (506673, 507207, 507926, 508194)]
        rollout.check("these four have been reminded, each once", reminded == expected, str(reminded))
        changes.only("reminder", papers={f"reminders/{number}-1.txt" for number, _ in expected} | {"reminders"})

    @toolpack.task(
        "expenses-of-tomas",
        "Decide on all expenses that Tomas Rehák has submitted. Our rules are in policies/travel.md.",
        solution=[
            ("read_paper", {"path": "policies/travel.md"}),
            (
                "sql",
                {
                    "query": "SELECT expense.id, receipt FROM expense JOIN employee ON employee.id = employee "
                    "WHERE name = 'Tomas Rehák' AND status = 'submitted'"
                },
            ),
            ("read_paper", {"path": "receipts/2026-02/3080.txt"}),
            ("decide_expense", {"expense_id": 3080, "approve": False, "reason": "47.70 for a taxi by day"}),
            ("decide_expense", {"expense_id": 3083, "approve": True}),
            ("decide_expense", {"expense_id": 3084, "approve": False, "reason": "Business class"}),
            *(("decide_expense", {"expense_id": number, "approve": True}) for number in (3085, 3087, 3093)),
        ],
        tags=["medium", "change"],
        variants=variants("decide_expense"),
    )
    def expenses_of_tomas(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only("expense")
        approved, rejected = (
            dict.fromkeys((3083, 3085, 3087, 3093), "approved"),
            dict.fromkeys((3080, 3084), "rejected"),
        )
        _decided(rollout, changes, approved | rejected)


def _hard(toolpack: Toolpack) -> None:
    @toolpack.task(
        "paid-twice",
        "A customer has paid one of its invoices twice. Write it into the paper refunds.txt, as one line: the number "
        "of the customer, that of the invoice, and the amount to pay back in euros, such as 12;500001;99.50. Then tell "
        "me the customer's name.",
        solution=[
            (
                "sql",
                {
                    "query": "SELECT customer.id, invoice, customer.name, payment.amount FROM payment "
                    "JOIN invoice ON invoice.id = invoice JOIN customer ON customer.id = customer "
                    "GROUP BY invoice HAVING count(*) > 1"
                },
            ),
            ("shell", {"command": f"echo '{REFUND}' > refunds.txt"}),
        ],
        answer=REFUNDED_CUSTOMER,
        tags=["hard", "change"],
        variants=variants("shell"),
    )
    def paid_twice(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only(papers={"refunds.txt"})
        _holds(rollout, "refunds.txt", [REFUND])
        _says(rollout, REFUNDED_CUSTOMER)

    @toolpack.task(
        "standing-contract",
        "Aurora Pharma has a standing contract with us: place and ship its order for this quarter. "
        "What are the number of the invoice and its amount?",
        solution=[
            ("find_customers", {"text": "Aurora Pharma"}),
            ("read_paper", {"path": "policies/contracts.md"}),
            ("read_paper", {"path": "contracts/241.md"}),
            ("sql", {"query": "SELECT sku, stock FROM product WHERE sku IN ('CE-1168', 'SE-1021', 'SE-1140')"}),
            (
                "place_order",
                {
                    "customer_id": 241,
                    "lines": [{"sku": "SE-1021", "quantity": 3}, {"sku": "SE-1140", "quantity": 3}],
                },
            ),
            ("ship_order", {"order_id": 109001}),
            ("get_order", {"order_id": 109001}),
        ],
        answer="invoice 508758, 13783.50 euros",
        tags=["hard", "change"],
        variants=variants("ship_order"),
    )
    def standing_contract(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        invoices = [(row[2], row[5], row[6]) for row in changes.new("invoice")]
        goods = {product.sku: product for product in products() if product.sku in {"SE-1021", "SE-1140"}}
        amount = 3 * sum(product.price for product in goods.values())
        rollout.check("there is one new invoice", invoices == [(241, amount, "open")], str(invoices))
        lines = sorted(row[2:] for row in changes.new("order_line"))
        expected = sorted((product.id, 3, product.price) for product in goods.values())
        rollout.check("the order has the goods of the contract that are in stock", lines == expected, str(lines))
        orders = [(row[1], row[3]) for row in changes.new("orders")]
        rollout.check(
            "there is one new order, of Aurora Pharma, and it is shipped", orders == [(241, "shipped")], str(orders)
        )
        stock = changes.new("product")
        taken = [(*product[:5], product.stock - 3, *product[6:8]) for product in goods.values()]
        rollout.check("only these goods have left the stock", {*stock} == {*taken}, str(stock))
        numbers = [row[0] for row in changes.new("invoice")]
        paths = {f"invoices/{number}.txt" for number in numbers} | {"invoices"}
        changes.only("invoice", "order_line", "orders", "product", papers=paths)
        for number in numbers[:1]:
            _says(rollout, str(number))
        _says(rollout, money(amount))

    @toolpack.task(
        "bills-of-the-week",
        "Pay the open bills that are due by 9 March, but none whose paper says another amount than our books. Write "
        "the numbers of those into the paper bills/disputed.txt, one on each line, sorted.",
        solution=_bills_of_the_week,
        tags=["hard", "change"],
        variants=variants("pay_bill"),
    )
    def bills_of_the_week(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        right, wrong = _due_bills()
        changes.only("bill", papers={"bills/disputed.txt"})
        paid = {row[0]: row[5:7] for row in changes.new("bill")}
        rollout.check("the right ones are paid, and no other", paid == dict.fromkeys(right, ("paid", DAY)), str(paid))
        _holds(rollout, "bills/disputed.txt", wrong)

    @toolpack.task(
        "reorder-list",
        "Purchasing needs the paper reports/reorder.csv. It has a line for each product that we get from Calder Glass "
        "or from Lund Filter and have less of than our reorder level, such as PU-1000;7 if 7 are missing to that "
        "level. The lines are sorted by SKU, and there is no heading.",
        solution=_reorder_list,
        tags=["hard", "change"],
        variants=variants("write_paper"),
    )
    def reorder_list(rollout: Rollout[Any]) -> None:
        changes = _Changes(rollout)
        changes.only(papers={"reports/reorder.csv"})
        _holds(rollout, "reports/reorder.csv", _missing())


# Shared by the solutions and the evaluators


def _expensive_scales() -> list[Product]:
    """Return the scales that get a new price: they cost more than `EXPENSIVE`, and their price changes in April."""
    return [
        product
        for product in products()
        if product.category == "Scales" and product.price > EXPENSIVE and product.april_price != product.price
    ]


def _april_prices(_initial: Any) -> Calls:
    prices = [
        ("set_price", {"sku": product.sku, "price": money(product.april_price)}) for product in _expensive_scales()
    ]
    return [("read_paper", {"path": "prices/2026-04.csv"}), *prices]


def _due_bills() -> tuple[list[str], list[str]]:
    """Return the numbers of two kinds of due bills: bills to pay, and bills that have another amount on their paper."""
    due = [bill for bill in bills() if not bill.paid and bill.due_on.isoformat() <= LAST_DAY]
    right = sorted(bill.number for bill in due if bill.amount == bill.paper_amount)
    return right, sorted(bill.number for bill in due if bill.amount != bill.paper_amount)


def _bills_of_the_week(_initial: Any) -> Calls:
    right, wrong = _due_bills()
    return [
        ("sql", {"query": "SELECT number, amount, paper FROM bill WHERE status = 'open' AND due_on <= '2026-03-09'"}),
        *(("pay_bill", {"number": number}) for number in right),
        ("write_paper", {"path": "bills/disputed.txt", "text": "".join(f"{number}\n" for number in wrong)}),
    ]


def _missing() -> list[str]:
    """Return the lines of the reorder list: each SKU with the number of missing pieces."""
    low = [product for product in products() if product.supplier in {3, 12} and product.stock < product.reorder_at]
    return sorted(f"{product.sku};{product.reorder_at - product.stock}" for product in low)


def _reorder_list(_initial: Any) -> Calls:
    query = (
        "SELECT sku, reorder_at - stock FROM product JOIN supplier ON supplier.id = supplier "
        "WHERE supplier.name IN ('Calder Glass', 'Lund Filter') AND stock < reorder_at ORDER BY sku"
    )
    text = "".join(f"{line}\n" for line in _missing())
    return [("sql", {"query": query}), ("write_paper", {"path": "reports/reorder.csv", "text": text})]


# Checks


class _Changes:
    """Changes of the books and the papers since the start of the rollout."""

    def __init__(self, rollout: Rollout[Any]) -> None:
        self._rollout = rollout
        self._tables: dict[str, list[Row]] = {}  # new and changed rows of each table that has changed
        with rollout.initial.books.path() as before, rollout.environment.books.path() as after:
            if before.read_bytes() != after.read_bytes():  # fast path: an agent often only reads
                self._compare(before, after)

    def _compare(self, before: Path, after: Path) -> None:
        with closing(sqlite3.connect(after)) as books:
            books.execute("ATTACH ? AS before", (str(before),))
            for table in TABLES:
                new = _rows_missing_in(books, table, "main", "before")
                if new or _rows_missing_in(books, table, "before", "main"):
                    self._tables[table] = new

    def new(self, table: str) -> list[Row]:
        """Return a table's new or changed rows, sorted by the first column."""
        return sorted(self._tables.get(table, ()), key=lambda row: str(row[0]))

    def only(self, *tables: str, papers: Iterable[str] = ()) -> None:
        """Check that only these tables and papers have changed."""
        others = [table for table in self._tables if table not in tables]
        self._rollout.check("no other table has changed", not others, str(others))
        first, last = self._rollout.initial, self._rollout.environment
        before, after = ({}, {}) if first.papers == last.papers else (_papers(first), _papers(last))
        differing = {path for path in {*before, *after} if before.get(path) != after.get(path)} - {*papers}
        self._rollout.check("no other paper has changed", not differing, str(sorted(differing)[:10]))


def _rows_missing_in(books: sqlite3.Connection, table: str, database: str, other: str) -> list[Row]:
    """Return the rows of a table in one database that have no equal row in the other database."""
    columns = books.execute(f"PRAGMA {database}.table_info({table})").fetchall()
    # Key columns are compared with `=`, which can use their index. Other columns may be NULL, and need `IS`.
    same = " AND ".join(f"mine.{name} {'=' if key else 'IS'} yours.{name}" for _, name, _, _, _, key in columns)
    return books.execute(
        f"SELECT * FROM {database}.{table} mine WHERE NOT EXISTS (SELECT 1 FROM {other}.{table} yours WHERE {same})"  # noqa: S608
    ).fetchall()


def _papers(environment: Any) -> Mapping[str, bytes | None]:
    """Return the contents of all papers by path. A folder has the value None."""
    files = environment.papers
    return {path: files.read_bytes(path) if files.is_file(path) else None for path in files.glob("**/*")}


def _holds(rollout: Rollout[Any], path: str, lines: list[str]) -> None:
    """Check the content of a paper. Empty lines, case, spaces around fields and the spelling of numbers are ignored."""
    papers = rollout.environment.papers
    text = papers.read_text(path, errors="replace") if papers.is_file(path) else ""
    actual = [_fields(line) for line in text.split("\n") if line.strip()]
    rollout.check(f"{path} has the right lines", actual == [_fields(line) for line in lines], text[:200])


def _fields(line: str) -> list[Any]:
    """Return the fields of a line, with numbers as values."""
    fields = [field.strip().casefold() for field in line.split(";")]
    return [Decimal(field) if re.fullmatch(r"-?\d+(\.\d+)?", field, re.ASCII) else field for field in fields]


def _decided(rollout: Rollout[Any], changes: _Changes, expected: Mapping[int, str]) -> None:
    """Check the decisions on expenses. Nothing else in these rows may have changed."""
    actual = {row[0]: row[5] for row in changes.new("expense")}
    rollout.check("these expenses are decided, and no other", actual == expected, str(actual))


def _says(rollout: Rollout[Any], *spellings: str) -> None:
    """Check that the answer contains one of these texts."""
    rollout.check(f"the answer says {spellings[0]!r}", says(rollout.answer, *spellings), rollout.answer[:200])
