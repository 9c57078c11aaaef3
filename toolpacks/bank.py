"""One customer's bank: a current account, a savings account and standing orders.

Money is `Decimal`, so that cents are exact, and only `Account.book` changes a balance, so that the history is complete.
The date belongs to the environment and doesn't advance: no standing order falls due during a session.
"""

from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpacks._bank_data import CURRENT_IBAN, SAVINGS_IBAN, STANDING_ORDERS, TRANSACTIONS
from toolpacks._bank_tasks import add_tasks

# These types have limits that JSON Schema can express, so the server refuses invalid arguments before a function runs.
Iban = Annotated[str, Field(pattern=r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$")]
Amount = Annotated[Decimal, Field(gt=0, max_digits=12, decimal_places=2)]
Balance = Annotated[Decimal, Field(ge=0, max_digits=12, decimal_places=2)]


class Transaction(BaseModel):
    """A transaction of an account; a negative amount is a payment from it."""

    id: int
    day: date
    iban: str
    amount: Decimal
    subject: str


class Account(BaseModel):
    """An account: its balance and its transactions."""

    iban: str
    owner: str
    balance: Balance
    transactions: list[Transaction] = Field(default_factory=list)

    def book(self, day: date, iban: str, amount: Decimal, subject: str) -> Transaction:
        """Add an amount to the balance, and append a transaction. Raise an error if the balance would be negative."""
        if self.balance + amount < 0:
            raise ValueError(f"The account holds only {self.balance} euros: choose at most that amount.")
        self.balance += amount
        line = Transaction(id=len(self.transactions) + 1, day=day, iban=iban, amount=amount, subject=subject)
        self.transactions.append(line)
        return line


class Interval(StrEnum):
    """The interval of a standing order's payments."""

    WEEKLY = "weekly"
    MONTHLY = "monthly"
    QUARTERLY = "quarterly"
    YEARLY = "yearly"


class StandingOrder(BaseModel):
    """A payment that repeats."""

    id: int
    recipient: str
    amount: Amount
    subject: str
    interval: Interval
    next_day: date


class StandingOrders(BaseModel):
    """Standing orders by id. The id of a cancelled order is never used again."""

    orders: dict[int, StandingOrder] = Field(default_factory=dict)
    _last_id: int = PrivateAttr(default=0)

    @model_validator(mode="after")
    def _set_last_id(self) -> Self:
        self._last_id = max(self.orders, default=0)
        return self

    def new_id(self) -> int:
        """Return an id that was never used."""
        self._last_id += 1
        return self._last_id

    def find(self, order_id: int) -> StandingOrder:
        """Return an order, or raise an error that says how to find one."""
        if order_id not in self.orders:
            raise ValueError(f"There is no standing order {order_id}: list_standing_orders shows the ids.")
        return self.orders[order_id]


class Statement(BaseModel):
    """The totals of an account for a period: opening + received - spent = closing."""

    opening: Decimal
    received: Decimal
    spent: Decimal
    closing: Decimal


class BankEnvironment(TaskEnvironment):
    """One customer's accounts and standing orders on one day."""

    today: date
    account: Account
    savings: Account
    standing_orders: StandingOrders = Field(default_factory=StandingOrders)


def open_bank(
    *,
    owner: str = "Nora Lind",
    balance: Balance = Decimal("1840.25"),
    savings: Balance = Decimal("5200.00"),
) -> BankEnvironment:
    """Build the accounts of one customer, with two months of history.

    :param owner: Name of the customer.
    :param balance: Euros on the current account at the start.
    :param savings: Euros on the savings account at the start.
    """
    history = [
        Transaction(id=number, day=date.fromisoformat(day), iban=iban, amount=Decimal(amount), subject=subject)
        for number, (day, iban, amount, subject) in enumerate(TRANSACTIONS, start=1)
    ]
    orders = {
        number: StandingOrder(
            id=number,
            recipient=recipient,
            amount=Decimal(amount),
            subject=subject,
            interval=Interval(interval),
            next_day=date.fromisoformat(next_day),
        )
        for number, (recipient, amount, subject, interval, next_day) in enumerate(STANDING_ORDERS, start=1)
    }
    return BankEnvironment(
        today=date(2026, 3, 2),
        account=Account(iban=CURRENT_IBAN, owner=owner, balance=balance, transactions=history),
        savings=Account(iban=SAVINGS_IBAN, owner=owner, balance=savings),
        standing_orders=StandingOrders(orders=orders),
    )


toolpack = Toolpack("bank", open_bank)

Today = Annotated[date, Depends("today")]
CurrentAccount = Annotated[Account, Depends("account")]
SavingsAccount = Annotated[Account, Depends("savings")]
CurrentOrders = Annotated[StandingOrders, Depends("standing_orders")]


@toolpack.function(read_only=True)
def get_iban(account: CurrentAccount) -> str:
    """Get the IBAN of the current account."""
    return account.iban


@toolpack.function(read_only=True)
def get_balance(account: CurrentAccount) -> Decimal:
    """Get the balance of the current account in euros."""
    return account.balance


@toolpack.function(read_only=True)
def get_savings_balance(savings: SavingsAccount) -> Decimal:
    """Get the balance of the savings account in euros."""
    return savings.balance


@toolpack.function(read_only=True)
def list_transactions(account: CurrentAccount, count: Annotated[int, Field(ge=1)] = 10) -> list[Transaction]:
    """List the latest transactions of the current account, newest first.

    :param count: Maximum number of transactions.
    """
    return account.transactions[: -count - 1 : -1]


@toolpack.function(read_only=True)
def search_transactions(
    account: CurrentAccount, text: str, first: date | None = None, last: date | None = None
) -> list[Transaction]:
    """Find transactions of the current account by subject or IBAN, oldest first.

    :param text: Text in the subject or the IBAN; case is ignored.
    :param first: Earliest day.
    :param last: Latest day.
    """
    return [
        line
        for line in account.transactions
        if text.lower() in f"{line.subject}\n{line.iban}".lower()
        and (first is None or line.day >= first)
        and (last is None or line.day <= last)
    ]


@toolpack.function(read_only=True)
def get_statement(account: CurrentAccount, first: date, last: date) -> Statement:
    """Get the totals of the current account for a period.

    :param first: First day of the period.
    :param last: Last day of the period.
    """
    if last < first:
        raise ValueError(f"The period ends on {last}, before it starts on {first}: swap the days.")
    closing = account.balance - sum(line.amount for line in account.transactions if line.day > last)
    amounts = [line.amount for line in account.transactions if first <= line.day <= last]
    received = sum((amount for amount in amounts if amount > 0), Decimal(0))
    spent = sum((-amount for amount in amounts if amount < 0), Decimal(0))
    return Statement(opening=closing - received + spent, received=received, spent=spent, closing=closing)


@toolpack.function
def send_money(
    account: CurrentAccount, savings: SavingsAccount, today: Today, *, recipient: Iban, amount: Amount, subject: str
) -> Transaction:
    """Send money from the current account to another person's account.

    :param recipient: IBAN to credit, without spaces.
    :param amount: Euros to send, at most the balance.
    :param subject: What the payment is for.
    """
    if recipient in (account.iban, savings.iban):
        raise ValueError(f"{recipient} is the customer's own account: use move_to_savings or move_from_savings.")
    return account.book(today, recipient, -amount, subject)


@toolpack.function
def move_to_savings(account: CurrentAccount, savings: SavingsAccount, today: Today, amount: Amount) -> Transaction:
    """Move money from the current account to the savings account.

    :param amount: Euros to move, at most the balance of the current account.
    """
    line = account.book(today, savings.iban, -amount, "To savings")
    savings.book(today, account.iban, amount, "From current account")
    return line


@toolpack.function
def move_from_savings(account: CurrentAccount, savings: SavingsAccount, today: Today, amount: Amount) -> Transaction:
    """Move money from the savings account to the current account.

    :param amount: Euros to move, at most the balance of the savings account.
    """
    savings.book(today, account.iban, -amount, "To current account")
    return account.book(today, savings.iban, amount, "From savings")


@toolpack.function(read_only=True)
def list_standing_orders(standing_orders: CurrentOrders) -> list[StandingOrder]:
    """List the standing orders, the next to be paid first."""
    return sorted(standing_orders.orders.values(), key=lambda order: order.next_day)


@toolpack.function
def create_standing_order(
    standing_orders: CurrentOrders,
    today: Today,
    *,
    recipient: Iban,
    amount: Amount,
    subject: str,
    interval: Interval,
    first_day: date,
) -> StandingOrder:
    """Create a standing order, which pays the same amount at regular intervals.

    :param recipient: IBAN to credit, without spaces.
    :param amount: Euros to pay each time.
    :param subject: What the payments are for.
    :param interval: How often to pay.
    :param first_day: Day of the first payment, after today.
    """
    _check_is_later(first_day, today)
    order = StandingOrder(
        id=standing_orders.new_id(),
        recipient=recipient,
        amount=amount,
        subject=subject,
        interval=interval,
        next_day=first_day,
    )
    standing_orders.orders[order.id] = order
    return order


@toolpack.function
def change_standing_order(
    standing_orders: CurrentOrders,
    today: Today,
    *,
    order_id: int,
    amount: Amount | None = None,
    interval: Interval | None = None,
    next_day: date | None = None,
) -> StandingOrder:
    """Change a standing order. Omitted values stay unchanged.

    :param order_id: Number of the standing order.
    :param amount: Euros to pay each time.
    :param interval: How often to pay.
    :param next_day: Day of the next payment, after today.
    """
    order = standing_orders.find(order_id)
    if next_day is not None:
        _check_is_later(next_day, today)
        order.next_day = next_day
    order.amount = amount or order.amount
    order.interval = interval or order.interval
    return order


@toolpack.function
def cancel_standing_order(standing_orders: CurrentOrders, order_id: int) -> StandingOrder:
    """Cancel a standing order and return it.

    :param order_id: Number of the standing order.
    """
    order = standing_orders.find(order_id)
    del standing_orders.orders[order_id]
    return order


def _check_is_later(day: date, today: date) -> None:
    if day <= today:
        raise ValueError(f"{day} is not after today, {today}: choose a later day.")


add_tasks(toolpack)
