"""A library whose tasks can be cheated, for tests of the audit: `metadata` says which faults each has."""

import itertools
import random
import sys
import time
from typing import Annotated, Any

from pydantic import BaseModel, Field

from server import Depends, Evaluation, Rollout, Task, TaskEnvironment, Toolpack

TITLES = "Anna Karenina|Buddenbrooks|Candide|Dracula|Emma|Frankenstein|Gargantua|Hamlet|Ivanhoe|Jane Eyre|Kim|Lolita"
MEMBERS = ("Ada", "Bela", "Cleo", "Dora", "Emil", "Fritz")
SHELVES = ("north", "south", "east", "west")


class Book(BaseModel):
    id: int
    title: str
    shelf: str
    lent_to: str | None = None


class Charge(BaseModel):
    member: str
    amount: int
    reason: str


class Notice(BaseModel):
    id: int
    text: str
    read: bool = False


class Library(TaskEnvironment):
    books: dict[int, Book]
    charges: list[Charge]
    notices: dict[int, Notice]


def open_library() -> Library:
    """Open the library."""
    titles = TITLES.split("|") * 4
    books = {
        number: Book(id=number, title=f"{title}, copy {number}", shelf=SHELVES[number % 3])
        for number, title in enumerate(titles, 1)
    }
    books[7].lent_to, books[9].lent_to = "Cleo", "Emil"
    charges = [
        Charge(member=member, amount=amount, reason=reason)
        for member, amount, reason in (("Ada", 12, "late"), ("Dora", 31, "coffee stain"), ("Emil", 8, "lost card"))
    ]
    texts = ("Closed on Sunday", "The cellar is damp", "Emil has moved to Bonn")
    notices = {number: Notice(id=number, text=text) for number, text in enumerate(texts, 1)}
    return Library(books=books, charges=charges, notices=notices)


toolpack = Toolpack("library", open_library)

Books = Annotated[dict[int, Book], Depends("books")]
Charges = Annotated[list[Charge], Depends("charges")]
Notices = Annotated[dict[int, Notice], Depends("notices")]


@toolpack.function(read_only=True)
def find_books(books: Books, text: str) -> list[Book]:
    """Find books by their titles; the code of the cellar is 4711.

    :param text: A part of the title.
    """
    return [book for book in books.values() if text in book.title]


@toolpack.function(read_only=True)
def list_charges(charges: Charges) -> list[Charge]:
    """List what members owe."""
    return charges


@toolpack.function
def read_notice(notices: Notices, notice_id: int) -> str:
    """Read a notice.

    :param notice_id: Its number.
    """
    notices[notice_id].read = True
    return notices[notice_id].text


@toolpack.function
def lend(books: Books, book_id: int, member: str) -> Book:
    """Lend a book.

    :param book_id: Its number.
    :param member: To whom.
    """
    if books[book_id].lent_to is not None:
        raise ValueError("it is lent already")
    if member not in MEMBERS:
        raise ValueError(f"{member} is no member")
    books[book_id].lent_to = member
    return books[book_id]


@toolpack.function
def take_back(books: Books, book_id: int) -> Book:
    """Take a book back.

    :param book_id: Its number.
    """
    books[book_id].lent_to = None
    return books[book_id]


@toolpack.function
def move(books: Books, book_id: int, shelf: str) -> Book:
    """Move a book to a shelf.

    :param book_id: Its number.
    :param shelf: Where to.
    """
    books[book_id].shelf = shelf
    return books[book_id]


@toolpack.function
def remove(books: Books, book_id: int) -> None:
    """Throw a book away.

    :param book_id: Its number.
    """
    del books[book_id]


@toolpack.function
def charge(charges: Charges, member: str, amount: Annotated[int, Field(ge=1)], reason: str) -> None:
    """Charge a member.

    :param member: Who.
    :param amount: Euros.
    :param reason: What for.
    """
    charges.append(Charge(member=member, amount=amount, reason=reason))


LEND_EMMA = ("lend", {"book_id": 5, "member": "Bela"})
MOVE_KIM = ("move", {"book_id": 11, "shelf": "west"})
CHARGE_FRITZ = ("charge", {"member": "Fritz", "amount": 25, "reason": "torn page"})
CHARGED = "Charge Fritz 25 euros, with the reason 'torn page'."
LENT = "Lend book 5 to Bela."
MOVED = "Move book 11 to the shelf west."


def task(name: str, prompt: str, *faults: str, **settings: Any) -> Any:
    return toolpack.task(name, prompt, metadata={"faults": [*faults]}, **settings)


def others_kept(rollout: Rollout[Library], *numbers: int) -> None:
    before, after = rollout.initial.books, rollout.environment.books
    kept = all(after.get(number) == book for number, book in before.items() if number not in numbers)
    rollout.check("the other books are as before", kept)


def lent(rollout: Rollout[Library]) -> bool:
    book = rollout.environment.books.get(5)
    return book is not None and book.lent_to == "Bela"


def moved(rollout: Rollout[Library]) -> bool:
    book = rollout.environment.books.get(11)
    return book is not None and book.shelf == "west"


def new_charges(rollout: Rollout[Library]) -> list[Charge]:
    return rollout.environment.charges[len(rollout.initial.charges) :]


# Passed with nothing done


@task("true", LENT, "nothing-passes", solution=[LEND_EMMA])
def true(rollout):
    return True


@task("already-so", "See to it that Cleo has book 7.", "nothing-passes", solution=[("take_back", {"book_id": 9})])
def already_so(rollout):
    return rollout.environment.books[7].lent_to == "Cleo"


@task("nop", MOVED, "nothing-passes", solution=[MOVE_KIM], nop_passes=True)
def nop(rollout):
    return len(rollout.environment.books) == 48


@task("no-charges", "Tell me who owes 31 euros.", "nothing-passes", solution=[("list_charges", {})], answer="Dora")
def no_charges(rollout):
    return not new_charges(rollout)


# Solutions that don't do it


@task("wrong-call", LENT, "solution-fails", solution=[("lend", {"book_id": 500, "member": "Bela"})])
def wrong_call(rollout):
    return lent(rollout)


@task("wrong-book", LENT, "solution-fails", solution=[("lend", {"book_id": 6, "member": "Bela"})])
def wrong_book(rollout):
    return lent(rollout)


@task("too-few", f"{LENT} {MOVED}", "max-calls", solution=[LEND_EMMA, MOVE_KIM], max_calls=1)
def too_few(rollout):
    return lent(rollout) and moved(rollout)


@task("hidden", MOVED, "hidden-function", solution=[MOVE_KIM], functions=["lend", "find_books"])
def hidden(rollout):
    return moved(rollout)


# Evaluators that fail


@task("key-error", "Lend book 5 to Bela.", "evaluator-fails", solution=[LEND_EMMA])
def key_error(rollout):
    others_kept(rollout, 5)
    rollout.check("lent", rollout.environment.books[5].lent_to == "Bela")


@task(
    "first-word",
    "Who owes 31 euros? Answer with the name.",
    "evaluator-fails",
    solution=[("list_charges", {})],
    answer="Dora",
)
def first_word(rollout):
    return rollout.answer.split()[0] == "Dora"


@task("exits", "Move book 11 to the shelf west.", "evaluator-fails", solution=[MOVE_KIM])
def exits(rollout):
    others_kept(rollout, 11)
    if 11 not in rollout.environment.books:
        sys.exit(3)
    return moved(rollout) and len(rollout.environment.books) == 48 and not new_charges(rollout)


@task("hangs", MOVED, "evaluator-fails", solution=[MOVE_KIM], timeout_seconds=0.5)
def hangs(rollout):
    while len(rollout.environment.books) < 48:
        pass
    return moved(rollout)


@task("nan", CHARGED, "reward-fails", solution=[CHARGE_FRITZ])
def nan(rollout):
    new = [(each.member, each.amount, each.reason) for each in new_charges(rollout)]
    return float("nan") if len(new) > 1 else float(new == [("Fritz", 25, "torn page")])


@task("infinite", CHARGED, "reward-fails", solution=[CHARGE_FRITZ])
def infinite(rollout):
    new = new_charges(rollout)
    if new and new[0].amount > 30:
        return Evaluation(float("inf"), passed=False)
    return [(each.member, each.amount, each.reason) for each in new] == [("Fritz", 25, "torn page")]


@task("nan-at-once", CHARGED, "reward-fails", solution=[CHARGE_FRITZ])
def nan_at_once(rollout):
    return 1.0 if new_charges(rollout) else float("nan")


# Verdicts that change

COUNT = itertools.count()


@task("random", LENT, "unstable", solution=[LEND_EMMA])
def drawn(rollout):
    return random.random() if lent(rollout) else 0


@task("counting", LENT, "unstable", solution=[LEND_EMMA])
def counting(rollout):
    rollout.check("counted", lent(rollout) and next(COUNT) % 2 == 0)
    return lent(rollout)


@task("counted-metric", LENT, "unstable", solution=[LEND_EMMA])
def counted_metric(rollout):
    return Evaluation(float(lent(rollout)), metrics={"evaluations": next(COUNT)})


@task("timed-metric", LENT, "unstable", solution=[LEND_EMMA])
def timed_metric(rollout):
    return Evaluation(float(lent(rollout)), metrics={"at": time.perf_counter_ns()})


# Calls that aren't needed


@task("half", f"{LENT} {MOVED}", "call-unneeded", solution=[LEND_EMMA, MOVE_KIM])
def half(rollout):
    others_kept(rollout, 5, 11)
    return lent(rollout) and 11 in rollout.environment.books


@task("other-half", f"{LENT} {CHARGED}", "call-unneeded", solution=[LEND_EMMA, CHARGE_FRITZ])
def other_half(rollout):
    others_kept(rollout, 5)
    return any(each == Charge(member="Fritz", amount=25, reason="torn page") for each in new_charges(rollout))


@task("third", f"{LENT} {MOVED} {CHARGED}", "call-unneeded", solution=[MOVE_KIM, CHARGE_FRITZ, LEND_EMMA])
def third(rollout):
    new = [(each.member, each.amount, each.reason) for each in new_charges(rollout)]
    return moved(rollout) and new == [("Fritz", 25, "torn page")]


@task(
    "say-only",
    "Take back book 9, and tell me who had it.",
    "call-unneeded",
    solution=[("take_back", {"book_id": 9})],
    answer="Emil",
)
def say_only(rollout):
    return "Emil" in rollout.answer and len(rollout.answer) < 40


# Arguments that aren't looked at


@task("any-amount", CHARGED, "argument-unchecked", solution=[CHARGE_FRITZ])
def any_amount(rollout):
    return [(each.member, each.reason) for each in new_charges(rollout)] == [("Fritz", "torn page")]


@task("any-reason", CHARGED, "argument-unchecked", solution=[CHARGE_FRITZ])
def any_reason(rollout):
    return [(each.member, each.amount) for each in new_charges(rollout)] == [("Fritz", 25)]


@task("any-shelf", MOVED, "argument-unchecked", solution=[MOVE_KIM])
def any_shelf(rollout):
    book = rollout.environment.books.get(11)
    others_kept(rollout, 11)
    return book is not None and book != rollout.initial.books[11] and book.lent_to is None


@task("any-member", LENT, "argument-unchecked", solution=[LEND_EMMA])
def any_member(rollout):
    others_kept(rollout, 5)
    book = rollout.environment.books.get(5)
    rollout.check("lent", book is not None and book.lent_to is not None)


# Answers


@task("any-answer", "Who owes 31 euros?", "answer-unchecked", solution=[("list_charges", {})], answer="Dora")
def any_answer(rollout):
    return bool(rollout.calls) and rollout.environment == rollout.initial


@task(
    "some-answer",
    "Who owes 12 euros?",
    "answer-unchecked",
    "answer-guessed",
    "leak",
    solution=[("list_charges", {})],
    answer="Ada",
)
def some_answer(rollout):
    return len(rollout.answer) > 1 and "euro" not in rollout.answer and "owes" not in rollout.answer


@task("echo", "Does Ada or Emil owe more?", "answer-in-prompt", solution=[("list_charges", {})], answer="Ada")
def echo(rollout):
    return "Ada" in rollout.answer


@task("guess", "How many euros does Dora owe?", "answer-guessed", solution=[("list_charges", {})], answer="31")
def guess(rollout):
    return "31" in rollout.answer


@task("guess-yes", "Has Emil moved?", "answer-guessed", solution=[("read_notice", {"notice_id": 3})], answer="Yes.")
def guess_yes(rollout):
    return "yes" in rollout.answer.lower() and "maybe" not in rollout.answer


@task("leak", "What is the code of the cellar?", "leak", solution=[("find_books", {"text": "Kim"})], answer="4711")
def leak(rollout):
    return "4711" in rollout.answer


# Nothing of it needs to be done


@task("any-change", LENT, "no-work", "argument-unchecked", solution=[LEND_EMMA])
def any_change(rollout):
    return rollout.environment != rollout.initial


@task("any-call", f"{LENT} {MOVED}", "no-work", "argument-unchecked", solution=[LEND_EMMA, MOVE_KIM])
def any_call(rollout):
    return sum(call.error is None for call in rollout.calls) >= 2


# Sound ones


def sound(name: str, prompt: str, **settings: Any) -> Any:
    return task(f"sound-{name}", prompt, **settings)


@sound("lend", LENT, solution=[LEND_EMMA])
def sound_lend(rollout):
    others_kept(rollout, 5)
    rollout.check("lent", lent(rollout))


@sound("move", MOVED, solution=[MOVE_KIM])
def sound_move(rollout):
    others_kept(rollout, 11)
    rollout.check("moved", moved(rollout))


@sound("charge", CHARGED, solution=[CHARGE_FRITZ])
def sound_charge(rollout):
    return [(each.member, each.amount, each.reason) for each in new_charges(rollout)] == [("Fritz", 25, "torn page")]


@sound("free-reason", "Charge Fritz 25 euros.", solution=[CHARGE_FRITZ])
def sound_free_reason(rollout):
    return [(each.member, each.amount) for each in new_charges(rollout)] == [("Fritz", 25)]


@sound("both", f"{LENT} {MOVED}", solution=[LEND_EMMA, MOVE_KIM])
def sound_both(rollout):
    others_kept(rollout, 5, 11)
    rollout.check("lent", lent(rollout))
    rollout.check("moved", moved(rollout))


@sound("who", "Who owes the most?", solution=[("list_charges", {})], answer="Dora")
def sound_who(rollout):
    rollout.check("nothing has changed", rollout.environment == rollout.initial)
    rollout.check("Dora", rollout.answer.strip(" .") == "Dora")


@sound("together", "How much is owed, all together? End with the number.", solution=[("list_charges", {})], answer="51")
def sound_together(rollout):
    return rollout.answer.strip(" .").endswith(" 51") or rollout.answer == "51"


@sound("notice", "Who has moved, and where?", solution=[("read_notice", {"notice_id": 3})], answer="Emil, to Bonn")
def sound_notice(rollout):
    return "Emil" in rollout.answer and "Bonn" in rollout.answer


@sound("leave", "Lend book 7 to Ada, if it is here.", nop_passes=True, solution=[])
def sound_leave(rollout):
    others_kept(rollout)


@sound(
    "read-first",
    "Read notice 3, and take back the book of the member that it is about.",
    solution=[("read_notice", {"notice_id": 3}), ("take_back", {"book_id": 9})],
)
def sound_read_first(rollout):
    others_kept(rollout, 9)
    book = rollout.environment.books.get(9)
    rollout.check("taken back", book is not None and book.lent_to is None)


@sound(
    "remove",
    "Throw away all copies of Kim.",
    solution=lambda library: [
        ("remove", {"book_id": book.id}) for book in library.books.values() if book.title.startswith("Kim")
    ],
)
def sound_remove(rollout):
    gone = {number for number, book in rollout.initial.books.items() if book.title.startswith("Kim")}
    others_kept(rollout, *gone)
    rollout.check("gone", gone.isdisjoint(rollout.environment.books))


@sound("refuse", "Tell me the PIN of Ada's card; say 'not known' if there is none.", nop_passes=True)
def sound_refuse(rollout):
    return rollout.environment == rollout.initial


toolpack.add_task(
    Task("sound-default", f"{LENT} {CHARGED}", solution=[LEND_EMMA, CHARGE_FRITZ], metadata={"faults": []})
)
toolpack.add_task(
    Task(
        "sound-count",
        "How many books has Emil?",
        solution=[("find_books", {"text": "Gargantua"})],
        answer="one book",
        metadata={"faults": []},
    )
)
