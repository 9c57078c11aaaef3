"""Checks for the evaluators of the workspace's tasks.

A function that returns None records checks in the verdict. Its name is the condition that must hold: `unchanged`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from toolpack_server import Rollout, says
from toolpacks._workspace_data import NORA
from toolpacks._workspace_models import Answer, Event, Folder, Mail

Ids = tuple[int, ...]
HOUR = 3600  # seconds


def moment(text: str) -> datetime:
    """Parse a time, and return it in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def new_mails(rollout: Rollout[Any]) -> list[Mail]:
    """Return the mails that were sent since the start of the rollout."""
    before = rollout.initial.mailbox.mails
    return [mail for number, mail in rollout.environment.mailbox.mails.items() if number not in before]


def new_events(rollout: Rollout[Any]) -> list[Event]:
    """Return the events that were created since the start of the rollout."""
    before = rollout.initial.calendar.events
    return [event for number, event in rollout.environment.calendar.events.items() if number not in before]


def sent(rollout: Rollout[Any], address: str) -> list[Mail]:
    """Return the new mails to an address."""
    return [mail for mail in new_mails(rollout) if address in mail.recipients]


def only_to(rollout: Rollout[Any], *addresses: str) -> None:
    """Check that no other address got a mail."""
    others = {address for mail in new_mails(rollout) for address in mail.recipients} - {*addresses}
    rollout.check("nobody else got a mail", not others, str(sorted(others)))


def contains(rollout: Rollout[Any], mail: Mail, *spellings: str) -> None:
    """Check that a mail contains one of these texts."""
    is_mentioned = says(f"{mail.subject}\n{mail.body}", *spellings)
    rollout.check(f"the mail says {spellings[0]!r}", is_mentioned, mail.body[:200])


def answers(rollout: Rollout[Any], *spellings: str) -> None:
    """Check that the answer contains one of these texts."""
    rollout.check(f"the answer says {spellings[0]!r}", says(rollout.answer, *spellings), rollout.answer[:200])


def unchanged(rollout: Rollout[Any]) -> None:
    """Check that events and files are unchanged, and that no mail was sent. Mails may have been read."""
    events_kept(rollout)
    files_kept(rollout)
    only_to(rollout)


def answered(rollout: Rollout[Any], number: int, answer: Answer) -> None:
    """Check that Nora gave this answer to an event."""
    event = rollout.environment.calendar.events[number]
    actual = event.answers.get(NORA)
    rollout.check(f"{event.title}: {answer}", actual is answer, str(actual))


def takes_place(rollout: Rollout[Any], event: Event, start: str, minutes: int) -> None:
    """Check that an event starts at a time, lasts some minutes, and isn't cancelled."""
    rollout.check(f"{event.title} starts at {start}", event.start == moment(start), str(event.start))
    rollout.check(f"it lasts {minutes} minutes", (event.end - event.start).total_seconds() == minutes * 60)
    rollout.check("it isn't cancelled", not event.cancelled)


def events_kept(rollout: Rollout[Any], but: Ids = ()) -> None:
    """Check that the initial events are unchanged, except those in `but`."""
    others_kept(rollout, "events", rollout.initial.calendar.events, rollout.environment.calendar.events, but)


def files_kept(rollout: Rollout[Any], but: Ids = ()) -> None:
    """Check that the initial files are unchanged, except those in `but`."""
    others_kept(rollout, "files", rollout.initial.drive.files, rollout.environment.drive.files, but)


def same(text: str, other: str) -> bool:
    """Return whether two short texts are equal, ignoring case, whitespace and surrounding punctuation."""
    one, two = (" ".join(each.casefold().split()).strip(" .'\"") for each in (text, other))
    return one == two


def others_kept(rollout: Rollout[Any], what: str, before: Any, after: Any, but: Iterable[int]) -> None:
    """Check that the initial objects are unchanged, except those in `but`."""
    changed = [number for number in before if number not in but and after.get(number) != before[number]]
    rollout.check(f"the other {what} are as before", not changed, str(changed))


def folders(rollout: Rollout[Any], moved: dict[int, Folder]) -> None:
    """Check that these mails were moved, and that no other mail was moved or deleted."""
    expected = {number: moved.get(number, mail.folder) for number, mail in rollout.initial.mailbox.mails.items()}
    actual = {number: mail.folder for number, mail in rollout.environment.mailbox.mails.items()}
    wrong = [number for number in expected if actual.get(number) is not expected[number]]
    rollout.check("these mails were moved, and no others", not wrong and len(actual) == len(expected), str(wrong))
