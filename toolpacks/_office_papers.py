"""Initial papers of the office: bills, receipts, contracts, price lists and rules.

Papers about bills, expenses, prices and customers are made from the same data as the books, in `_office_data`.
"""

from datetime import timedelta

from toolpacks._office_data import Draw, bills, customers, expenses, money, products, suppliers

CONTRACTS = 24

TRAVEL_RULES = """# Travel expenses

Whoever approves an expense reads its receipt first.

- Hotel: at most 140.00 a night.
- Meals: at most 35.00 a person.
- Taxi: at most 40.00; any amount for a ride after 22:00.
- Train: second class only.
- Flight: economy class only.

What doesn't fit is rejected as a whole.
"""

CONTRACT_RULES = """# Standing contracts

A customer with a standing contract gets the goods of its contract at the beginning of each quarter, as one order, with
one line for each article. An article of which there is less in stock than the contract says is left out as a whole.
"""


def papers() -> dict[str, str | bytes]:
    """Return all papers by their paths."""
    paper_texts: dict[str, str | bytes] = {
        "policies/travel.md": TRAVEL_RULES,
        "policies/contracts.md": CONTRACT_RULES,
        "reports/.keep": "",
    }
    april = [f"{product.sku};{money(product.april_price)}" for product in products()]
    paper_texts["prices/2026-04.csv"] = "\n".join(["sku;price", *april, ""])
    names = {number: name for number, name, _ in suppliers()}
    for bill in bills():
        discount = bill.received_on + timedelta(days=5)
        paper_texts[bill.paper] = (
            f"{names[bill.supplier]}\n\nBill {bill.number}\nDate: {bill.received_on}\nDue: {bill.due_on}\n\n"
            f"Goods as delivered\nTotal: {money(bill.paper_amount)} EUR\n\n"
            f"2 % discount for payments that arrive by {discount}.\n"
        )
    for expense in expenses():
        paper_texts[expense.receipt] = (
            f"Receipt\nDate: {expense.spent_on}\n{expense.detail}\nTotal: {money(expense.amount)} EUR\n"
        )
    return paper_texts | _contracts()


def _contracts() -> dict[str, str]:
    """Return the papers of the standing contracts by their paths."""
    draw = Draw(7)
    paper_texts = {}
    for number in range(CONTRACTS):
        customer = customers()[number * 15]
        goods = [products()[draw.below(60) * 4 + step] for step in range(3)]
        lines = "".join(f"- {2 + draw.below(7)} x {product.sku} ({product.name})\n" for product in goods)
        paper_texts[f"contracts/{customer[0]}.md"] = (
            f"# Standing contract with {customer[1]}\n\nCustomer: {customer[0]}\nEach quarter:\n\n{lines}\n"
            "Prices: those of our price list on the day of the order.\n"
        )
    return paper_texts
