"""The bundled toolpacks: guarantees of their environments, tested on the plain functions."""

import ast
import inspect
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from toolpack_server import FunctionsRuntime
from toolpacks import _workspace_models as models
from toolpacks import bank, workspace

PACKS = [bank.toolpack, workspace.toolpack]
NORA = "nora.lind@tidewater.example"
SHOP = "DE05370502990031877045"

READING = {
    "bank": {
        "get_iban": {},
        "get_balance": {},
        "get_savings_balance": {},
        "list_transactions": {"count": 3},
        "search_transactions": {"text": "rent", "first": "2026-02-01"},
        "get_statement": {"first": "2026-02-01", "last": "2026-02-28"},
        "list_standing_orders": {},
    },
    "workspace": {
        "get_current_time": {},
        "search_contacts": {"query": "sailing"},
        "search_mails": {"query": "invitation", "folder": "inbox", "unread_only": True},
        "list_events": {"first_day": "2026-03-02", "last_day": "2026-03-06"},
        "find_free_time": {"day": "2026-03-04", "minutes": 60},
        "search_files": {"query": "tide"},
        "read_file": {"file_id": 1},
    },
}


@pytest.fixture
def account_world():
    return bank.open_bank()


@pytest.fixture
def office():
    return workspace.open_workspace()


def call(pack, environment, name, arguments):
    runtime = FunctionsRuntime([registered.function for registered in pack.functions.values()])
    return runtime.run_function(environment, name, arguments, raise_on_error=True)[0]


def mutable_parts(value, objects=None):
    objects = {} if objects is None else objects
    if isinstance(value, Enum) or id(value) in objects:
        return objects
    if isinstance(value, BaseModel):
        objects[id(value)] = value
        children = [*value.__dict__.values(), *(value.__pydantic_private__ or {}).values()]
    elif isinstance(value, dict):
        objects[id(value)] = value
        children = [*value, *value.values()]
    elif isinstance(value, list | set | tuple):
        objects[id(value)] = value
        children = list(value)
    else:
        return objects
    for child in children:
        mutable_parts(child, objects)
    return objects


# Both toolpacks


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_two_environments_share_no_objects(pack):
    one, other = pack.build({}), pack.build({})
    assert one == other
    assert not mutable_parts(one).keys() & mutable_parts(other).keys()


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_read_only_functions_leave_their_environment_unchanged(pack):
    reading = {name for name, registered in pack.functions.items() if registered.read_only}
    assert reading == READING[pack.name].keys()
    environment = pack.build({})
    for name, arguments in READING[pack.name].items():
        before = environment.model_dump()
        call(pack, environment, name, arguments)
        assert environment.model_dump() == before, name


@pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)
def test_environment_is_restored_from_its_own_json(pack):
    environment = pack.build({})
    assert pack.parse(environment.model_dump(mode="json")) == environment


@pytest.mark.parametrize("module", [bank, workspace, models], ids=lambda module: module.__name__)
def test_functions_use_no_clock_random_numbers_or_system_calls(module: ModuleType):
    tree = ast.parse(inspect.getsource(module))
    used = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(("datetime.", "date.", "time."))
    }
    assert used <= {"datetime.combine", "date.fromisoformat", "time.replace", "time.tzinfo", "time.astimezone"}
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"os", "random", "secrets", "time", "uuid"}


def test_workspace_is_small_enough_to_read(office):
    assert len(office.model_dump_json()) < 30_000


def test_toolpacks_is_a_namespace_package():
    assert not (Path(inspect.getfile(bank)).parent / "__init__.py").exists()


# The bank


@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["send_money", "move_to_savings", "move_from_savings"]),
            st.decimals("0.01", "4000", places=2),
        )
    )
)
def test_money_is_never_created_or_lost(moves):
    world = bank.open_bank()
    account, savings = world.account, world.savings
    before, lines = account.balance + savings.balance, len(account.transactions)
    total_sent = Decimal(0)
    for name, amount in moves:
        try:
            if name == "send_money":
                bank.send_money(account, savings, world.today, recipient=SHOP, amount=amount, subject="Groceries")
                total_sent += amount
            else:
                getattr(bank, name)(account, savings, world.today, amount)
        except ValueError:
            continue
    assert account.balance >= 0
    assert savings.balance >= 0
    assert account.balance + savings.balance + total_sent == before
    new = account.transactions[lines:]
    assert sum(line.amount for line in [*new, *savings.transactions]) == -total_sent


def test_cents_stay_exact_although_agents_send_json_numbers(account_world):
    before = account_world.account.balance
    for _ in range(3):
        call(bank.toolpack, account_world, "send_money", {"recipient": SHOP, "amount": 0.1, "subject": "Bread"})
    assert before - account_world.account.balance == Decimal("0.3")


def test_options_set_the_owner_and_the_balance():
    world = bank.toolpack.build({"owner": "Elif Kaya", "balance": 12.5})
    assert (world.account.owner, world.account.balance, world.savings.owner) == (
        "Elif Kaya",
        Decimal("12.5"),
        "Elif Kaya",
    )
    assert set(bank.toolpack.options.model_fields) == {"owner", "balance", "savings"}


def test_bank_statement_adds_up(account_world):
    statement = bank.get_statement(account_world.account, date(2026, 2, 1), date(2026, 2, 28))
    assert statement.opening + statement.received - statement.spent == statement.closing
    assert statement.received == Decimal("2688.00")
    assert statement.closing - Decimal(920) == account_world.account.balance


def test_transactions_are_searched_and_listed_newest_first(account_world):
    account = account_world.account
    assert [line.id for line in bank.list_transactions(account, 2)] == [13, 12]
    assert len(bank.list_transactions(account, 99)) == 13
    matches = bank.search_transactions(account, "RENT", first=date(2026, 2, 1), last=date(2026, 2, 28))
    assert [line.day for line in matches] == [date(2026, 2, 2)]


def test_id_of_a_cancelled_order_is_never_reused(account_world):
    orders, today = account_world.standing_orders, account_world.today
    new = {"recipient": SHOP, "amount": Decimal(5), "subject": "Tea", "interval": bank.Interval.WEEKLY}
    newest = max(orders.orders)
    bank.cancel_standing_order(orders, newest)
    order = bank.create_standing_order(orders, today, **new, first_day=date(2026, 3, 9))
    assert order.id == newest + 1
    assert orders.orders[order.id] is order


def test_standing_order_changes_only_in_the_passed_fields(account_world):
    orders, today = account_world.standing_orders, account_world.today
    before = orders.orders[1].model_copy()
    changed = bank.change_standing_order(orders, today, order_id=1, amount=Decimal(950))
    assert changed == before.model_copy(update={"amount": Decimal(950)})
    assert bank.list_standing_orders(orders)[0].next_day == date(2026, 3, 5)


def test_errors_of_the_bank_say_what_to_do(account_world):
    account, savings, today = account_world.account, account_world.savings, account_world.today
    orders = account_world.standing_orders
    with pytest.raises(ValueError, match=r"holds only 1840\.25 euros: choose at most"):
        bank.send_money(account, savings, today, recipient=SHOP, amount=Decimal(5000), subject="Boat")
    with pytest.raises(ValueError, match="use move_to_savings"):
        bank.send_money(account, savings, today, recipient=savings.iban, amount=Decimal(1), subject="Mine")
    with pytest.raises(ValueError, match="no standing order 99: list_standing_orders shows"):
        bank.cancel_standing_order(orders, 99)
    with pytest.raises(ValueError, match="choose a later day"):
        bank.change_standing_order(orders, today, order_id=1, next_day=today)
    with pytest.raises(ValueError, match="swap the days"):
        bank.get_statement(account, date(2026, 3, 1), date(2026, 2, 1))


@pytest.mark.parametrize("amount", [0, -5, 1.005])
def test_invalid_payment_amounts_are_rejected(account_world, amount):
    with pytest.raises(ValueError, match="amount"):
        call(bank.toolpack, account_world, "send_money", {"recipient": SHOP, "amount": amount, "subject": "?"})


# The workspace


def test_invitation_and_calendar_share_one_event_object(office):
    invitations = [mail for mail in office.mailbox.mails.values() if mail.event]
    assert invitations
    for mail in invitations:
        assert mail.event is office.calendar.events[mail.event.id]


def test_cancelled_event_is_cancelled_in_its_invitation_too(office):
    workspace.cancel_event(office.calendar, office.me, 25)
    assert office.calendar.events[25].cancelled
    assert workspace.read_mail(office.mailbox, 47).event.cancelled


def test_new_event_is_shared_with_the_invitation_it_sends(office):
    start = datetime(2026, 3, 10, 10, tzinfo=UTC)
    event = workspace.create_event(
        office, title="Test sail", start=start, end=start + timedelta(hours=2), participants=["omar@x.example", NORA]
    )
    invitation = max(office.mailbox.mails.values(), key=lambda mail: mail.id)
    assert invitation.event is event is office.calendar.events[event.id]
    assert invitation.recipients == ["omar@x.example"]
    workspace.reschedule_event(office.calendar, office.me, event.id, start + timedelta(days=1))
    assert invitation.event.end == start + timedelta(days=1, hours=2)


def test_accepted_invitation_appears_in_the_calendar(office):
    workspace.accept_invitation(office.mailbox, office.me, 50)
    assert office.calendar.events[23].answers[NORA] is workspace.Answer.ACCEPTED
    workspace.decline_invitation(office.mailbox, office.me, 50)
    assert office.calendar.events[23].answers[NORA] is workspace.Answer.DECLINED


def test_attachment_and_drive_share_one_file_object(office):
    mail = workspace.send_mail(office, ["a@b.example"], "Feedback", "Please read.", attachments=[4])
    workspace.append_to_file(office.drive, office.me, office.now, 4, "- More.\n")
    assert mail.attachments[0] is office.drive.files[4]
    assert mail.attachments[0].content.endswith("- More.\n")
    workspace.delete_file(office.drive, office.me, 4)
    assert mail.attachments[0].name == "pilot-feedback.md"


def test_environment_from_json_shares_objects_with_the_same_id(office):
    workspace.delete_file(office.drive, office.me, 1)
    workspace.send_mail(office, [NORA], "Budget", "See above.", attachments=[2])
    rebuilt = workspace.toolpack.parse(office.model_dump(mode="json"))
    assert 1 not in rebuilt.drive.files
    assert (
        rebuilt.mailbox.mails[50].attachments[0] is rebuilt.mailbox.mails[56].attachments[0] is rebuilt.drive.files[2]
    )
    assert rebuilt.mailbox.mails[47].event is rebuilt.calendar.events[25]


def test_ids_are_never_reused(office):
    last = max([*office.mailbox.mails, *office.calendar.events, *office.drive.files])
    workspace.delete_mail(office.mailbox, last)
    file = workspace.create_file(office, "notes.md", "Nothing yet.\n")
    mail = workspace.reply_to_mail(office, 48, "Thursday it is.")
    assert [file.id, mail.id] == [last + 1, last + 2]
    assert (mail.reply_to, mail.subject) == (48, "Re: Invitation: Release planning")


def test_mails_are_searched_opened_and_moved(office):
    unread = workspace.search_mails(office.mailbox, "", unread_only=True)
    assert unread[0].id == 55
    assert workspace.read_mail(office.mailbox, 55).read
    assert len(workspace.search_mails(office.mailbox, "", unread_only=True)) == len(unread) - 1
    workspace.move_mail(office.mailbox, 55, workspace.Folder.ARCHIVE)
    archived = workspace.search_mails(office.mailbox, "hotel AURORA", folder=workspace.Folder.ARCHIVE)
    assert [mail.id for mail in archived] == [55]


def test_free_time_excludes_events(office):
    day = date(2026, 3, 4)
    slots = workspace.find_free_time(office.calendar, office.me, day)
    assert [f"{slot.start:%H:%M}-{slot.end:%H:%M}" for slot in slots] == ["08:45-13:00", "14:30-17:00"]
    workspace.cancel_event(office.calendar, office.me, 25)
    (slot,) = workspace.find_free_time(office.calendar, office.me, day, 300)
    assert f"{slot.start:%H:%M}-{slot.end:%H:%M}" == "08:45-17:00"


def test_files_are_shared_and_searched(office):
    shared = workspace.share_file(office.drive, office.me, 6, "sofia@x.example", workspace.Permission.WRITE)
    assert shared.shared_with == {"sofia@x.example": workspace.Permission.WRITE}
    assert [file.id for file in workspace.search_files(office.drive, "venice berth")] == [6]
    assert "berth 42" in workspace.read_file(office.drive, 6).content


def test_people_and_events_are_searched(office):
    assert [person.name for person in workspace.search_contacts(office.contacts, "dentist")] == ["Dr Vogel's practice"]
    day = date(2026, 3, 4)
    assert [event.id for event in workspace.list_events(office.calendar, day, day)] == [24, 25]
    assert [event.id for event in workspace.list_events(office.calendar, day, day, "jonas")] == [25]


def test_times_are_accepted_with_and_without_a_time_zone(office):
    arguments = {"title": "Swim", "start": "2026-03-07T08:00", "end": "2026-03-07T11:00+02:00"}
    event = call(workspace.toolpack, office, "create_event", arguments)
    assert event.end - event.start == timedelta(hours=1)
    assert event.end.tzinfo is UTC


def test_errors_of_the_workspace_say_what_to_do(office):
    calendar, drive, mailbox, me = office.calendar, office.drive, office.mailbox, office.me
    noon = datetime(2026, 3, 10, 12, tzinfo=UTC)
    with pytest.raises(ValueError, match="no mail 99: search_mails shows"):
        workspace.read_mail(mailbox, 99)
    with pytest.raises(ValueError, match="no event 99: list_events shows"):
        workspace.cancel_event(calendar, me, 99)
    with pytest.raises(ValueError, match="no file 99: search_files shows"):
        workspace.send_mail(office, [NORA], "Hi", "Hi", attachments=[99])
    with pytest.raises(ValueError, match=r"Only priya\.raman@tidewater\.example, who organizes"):
        workspace.reschedule_event(calendar, me, 23, noon)
    with pytest.raises(ValueError, match=r"Only priya\.raman@tidewater\.example, who owns"):
        workspace.delete_file(drive, me, 2)
    with pytest.raises(ValueError, match="may only read file 2"):
        workspace.append_to_file(drive, me, office.now, 2, "more\n")
    with pytest.raises(ValueError, match="choose another name"):
        workspace.create_file(office, "first-week.md", "")
    with pytest.raises(ValueError, match="before it starts: choose a later end"):
        workspace.create_event(office, title="Odd", start=noon, end=noon)
    with pytest.raises(ValueError, match="Mail 55 isn't an invitation"):
        workspace.accept_invitation(mailbox, me, 55)
    with pytest.raises(ValueError, match="You aren't invited to event 25"):
        workspace.accept_invitation(mailbox, me, 47)
    calendar.events[23].cancelled = True
    with pytest.raises(ValueError, match="Event 23 is cancelled"):
        workspace.accept_invitation(mailbox, me, 50)
