"""Checks for the evaluators of the workspace's tasks.

Each function records one or two checks, and its name says what must be true.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from toolpack_server import Rollout, says
from toolpacks._workspace_data import NORA
from toolpacks._workspace_models import Answer, Event, Folder, Mail

Kept = tuple[int, ...]
HOUR = 3600  # seconds


def moment(text: str) -> datetime:
    """Return a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def new_mails(rollout: Rollout[Any]) -> list[Mail]:
    """Return the mails since the start of the rollout."""
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
    said = says(f"{mail.subject}\n{mail.body}", *spellings)
    rollout.check(f"the mail says {spellings[0]!r}", said, mail.body[:200])


def answers(rollout: Rollout[Any], *spellings: str) -> None:
    """Check that the answer contains one of these texts."""
    rollout.check(f"the answer says {spellings[0]!r}", says(rollout.answer, *spellings), rollout.answer[:200])


def unchanged(rollout: Rollout[Any]) -> None:
    """Check that nothing has changed. Mails may have been read."""
    events_kept(rollout)
    files_kept(rollout)
    only_to(rollout)


def answered(rollout: Rollout[Any], number: int, answer: Answer) -> None:
    """Check Nora's answer to an event."""
    event = rollout.environment.calendar.events[number]
    found = event.answers.get(NORA)
    rollout.check(f"{event.title}: {answer}", found is answer, str(found))


def takes_place(rollout: Rollout[Any], event: Event, start: str, minutes: int) -> None:
    """Check when an event takes place."""
    rollout.check(f"{event.title} starts at {start}", event.start == moment(start), str(event.start))
    rollout.check(f"it lasts {minutes} minutes", (event.end - event.start).total_seconds() == minutes * 60)
    rollout.check("it isn't cancelled", not event.cancelled)


def events_kept(rollout: Rollout[Any], but: Kept = ()) -> None:
    """Check that the initial events are unchanged, except those in `but`."""
    others_kept(rollout, "events", rollout.initial.calendar.events, rollout.environment.calendar.events, but)


def files_kept(rollout: Rollout[Any], but: Kept = ()) -> None:
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
    wanted = {number: moved.get(number, mail.folder) for number, mail in rollout.initial.mailbox.mails.items()}
    found = {number: mail.folder for number, mail in rollout.environment.mailbox.mails.items()}
    wrong = [number for number in wanted if found.get(number) is not wanted[number]]
    rollout.check("these mails were moved, and no others", not wrong and len(found) == len(wanted), str(wrong))
