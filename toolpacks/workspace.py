"""An office: mails, a calendar and files that refer to one another, and the people who share them.

An invitation refers to the event in the calendar, and an attachment to the file in the drive, so a change shows in both
places. The clock belongs to the environment and doesn't advance; all times are UTC.
"""

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated

from pydantic import Field

from toolpack_server import Depends, Toolpack
from toolpacks._workspace_data import open_workspace
from toolpacks._workspace_models import (
    Address,
    Answer,
    Calendar,
    Drive,
    Event,
    File,
    FileSummary,
    Folder,
    Mail,
    Mailbox,
    MailSummary,
    Permission,
    Person,
    Time,
    TimeSlot,
    WorkspaceEnvironment,
)
from toolpacks._workspace_tasks import add_tasks

toolpack = Toolpack("workspace", open_workspace)

Now = Annotated[datetime, Depends("now")]
Me = Annotated[Person, Depends("me")]
Contacts = Annotated[list[Person], Depends("contacts")]
MyMailbox = Annotated[Mailbox, Depends("mailbox")]
MyCalendar = Annotated[Calendar, Depends("calendar")]
MyDrive = Annotated[Drive, Depends("drive")]
# `Depends` also takes a callable. This callable returns the whole environment, for functions that use much of it.
Workspace = Annotated[WorkspaceEnvironment, Depends(lambda environment: environment)]

Participants = Annotated[list[Address], Field(min_length=1)]


@toolpack.function(read_only=True)
def get_current_time(now: Now) -> datetime:
    """Get the current date and time."""
    return now


@toolpack.function(read_only=True)
def search_contacts(contacts: Contacts, query: str) -> list[Person]:
    """Find people by name, address or notes about them.

    :param query: Words that must all occur; empty for all people.
    """
    return [person for person in contacts if _mentions(query, person.name, person.address, person.about)]


@toolpack.function(read_only=True)
def search_mails(
    mailbox: MyMailbox, query: str, folder: Folder | None = None, unread_only: bool = False
) -> list[MailSummary]:
    """Find mails by subject, body, sender or recipient, newest first.

    :param query: Words that must all occur; empty for all mails.
    :param folder: Only mails in this folder.
    :param unread_only: Only mails that are still unread.
    """
    summaries = [
        MailSummary.model_validate(mail, from_attributes=True)
        for mail in mailbox.mails.values()
        if _mentions(query, mail.subject, mail.body, mail.sender, *mail.recipients)
        and folder in (None, mail.folder)
        and not (unread_only and mail.read)
    ]
    return sorted(summaries, key=lambda mail: (mail.sent_at, mail.id), reverse=True)


@toolpack.function
def read_mail(mailbox: MyMailbox, mail_id: int) -> Mail:
    """Open a mail with its event and attachments, and mark it as read.

    :param mail_id: Number of the mail.
    """
    mail = mailbox.find(mail_id)
    mail.read = True
    return mail


@toolpack.function
def send_mail(
    workspace: Workspace, recipients: Participants, subject: str, body: str, attachments: list[int] | None = None
) -> Mail:
    """Send a mail.

    :param recipients: Addresses to send it to.
    :param subject: Subject line.
    :param body: Text of the mail.
    :param attachments: Numbers of the files to attach.
    """
    files = [workspace.drive.find(file_id) for file_id in attachments or []]
    return workspace.send(recipients, subject, body, attachments=files)


@toolpack.function
def reply_to_mail(workspace: Workspace, mail_id: int, body: str) -> Mail:
    """Answer the sender of a mail.

    :param mail_id: Number of the mail to answer.
    :param body: Text of the answer.
    """
    mail = workspace.mailbox.find(mail_id)
    subject = mail.subject if mail.subject.startswith("Re: ") else f"Re: {mail.subject}"
    return workspace.send([mail.sender], subject, body, reply_to=mail_id)


@toolpack.function
def move_mail(mailbox: MyMailbox, mail_id: int, folder: Folder) -> MailSummary:
    """Move a mail to another folder.

    :param mail_id: Number of the mail.
    :param folder: Where to put it.
    """
    mail = mailbox.find(mail_id)
    mail.folder = folder
    return MailSummary.model_validate(mail, from_attributes=True)


@toolpack.function
def delete_mail(mailbox: MyMailbox, mail_id: int) -> None:
    """Delete a mail for good; its event and its attachments stay where they are.

    :param mail_id: Number of the mail.
    """
    mailbox.find(mail_id)
    del mailbox.mails[mail_id]


@toolpack.function(read_only=True)
def list_events(calendar: MyCalendar, first_day: date, last_day: date, query: str = "") -> list[Event]:
    """List the events of some days, earliest first, cancelled ones included.

    :param first_day: First day to look at.
    :param last_day: Last day to look at.
    :param query: Words that must all occur in title, description, location or participants.
    """
    return [
        event
        for event in calendar.between(_midnight(first_day), _midnight(last_day) + timedelta(days=1))
        if _mentions(query, event.title, event.description, event.location, event.organizer, *event.answers)
    ]


@toolpack.function(read_only=True)
def find_free_time(
    calendar: MyCalendar, me: Me, day: date, minutes: Annotated[int, Field(ge=1)] = 30
) -> list[TimeSlot]:
    """Find the free time slots of a working day, 08:00 to 17:00.

    :param day: Day to look at.
    :param minutes: Minimum length of a slot.
    """
    free_from, end_of_day = _midnight(day) + timedelta(hours=8), _midnight(day) + timedelta(hours=17)
    slots = []
    for event in calendar.between(free_from, end_of_day):
        if event.cancelled or event.answers.get(me.address) is Answer.DECLINED:
            continue
        slots.append(TimeSlot(start=free_from, end=event.start))
        free_from = max(free_from, event.end)
    slots.append(TimeSlot(start=free_from, end=end_of_day))
    return [slot for slot in slots if slot.end - slot.start >= timedelta(minutes=minutes)]


@toolpack.function
def create_event(
    workspace: Workspace,
    *,
    title: str,
    start: Time,
    end: Time,
    participants: list[Address] | None = None,
    location: str = "",
    description: str = "",
) -> Event:
    """Add an event to the calendar and send its participants an invitation.

    :param title: Title of the event.
    :param start: When it starts, such as 2026-03-05T14:00.
    :param end: When it ends.
    :param participants: Addresses of the other participants.
    :param location: Where it takes place.
    :param description: What to know beforehand.
    """
    _check_order(start, end)
    answers = dict.fromkeys(participants or [], Answer.PENDING)
    answers.pop(workspace.me.address, None)
    event = Event(
        id=workspace.new_id(),
        title=title,
        start=start,
        end=end,
        organizer=workspace.me.address,
        answers=answers,
        location=location,
        description=description,
    )
    workspace.calendar.events[event.id] = event
    if answers:
        workspace.send(list(answers), f"Invitation: {title}", description, event=event)
    return event


@toolpack.function
def reschedule_event(calendar: MyCalendar, me: Me, event_id: int, start: Time, end: Time | None = None) -> Event:
    """Move one of your own events to another time; participants are asked again.

    :param event_id: Number of the event.
    :param start: When it starts now.
    :param end: When it ends now; without it, the event keeps its length.
    """
    event = calendar.find_own(event_id, me)
    end = end or start + (event.end - event.start)
    _check_order(start, end)
    event.start, event.end = start, end
    event.answers = dict.fromkeys(event.answers, Answer.PENDING)
    return event


@toolpack.function
def cancel_event(calendar: MyCalendar, me: Me, event_id: int) -> Event:
    """Cancel one of your own events.

    :param event_id: Number of the event.
    """
    event = calendar.find_own(event_id, me)
    event.cancelled = True
    return event


@toolpack.function
def accept_invitation(mailbox: MyMailbox, me: Me, mail_id: int) -> Event:
    """Accept the invitation in a mail.

    :param mail_id: Number of the mail.
    """
    return _answer(mailbox.find(mail_id), me, Answer.ACCEPTED)


@toolpack.function
def decline_invitation(mailbox: MyMailbox, me: Me, mail_id: int) -> Event:
    """Decline the invitation in a mail.

    :param mail_id: Number of the mail.
    """
    return _answer(mailbox.find(mail_id), me, Answer.DECLINED)


@toolpack.function(read_only=True)
def search_files(drive: MyDrive, query: str) -> list[FileSummary]:
    """Find files by name, owner or content.

    :param query: Words that must all occur; empty for all files.
    """
    return [
        FileSummary.model_validate(file, from_attributes=True)
        for file in drive.files.values()
        if _mentions(query, file.name, file.owner, file.content)
    ]


@toolpack.function(read_only=True)
def read_file(drive: MyDrive, file_id: int) -> File:
    """Open a file.

    :param file_id: Number of the file.
    """
    return drive.find(file_id)


@toolpack.function
def create_file(workspace: Workspace, name: str, content: str) -> File:
    """Create a text file.

    :param name: File name with its extension.
    :param content: What to write into it.
    """
    if any(file.name == name for file in workspace.drive.files.values()):
        raise ValueError(f"There is a file {name!r} already: choose another name or use append_to_file.")
    file = File(
        id=workspace.new_id(), name=name, owner=workspace.me.address, modified_at=workspace.now, content=content
    )
    workspace.drive.files[file.id] = file
    return file


@toolpack.function
def append_to_file(drive: MyDrive, me: Me, now: Now, file_id: int, text: str) -> File:
    """Add text at the end of a file.

    :param file_id: Number of the file.
    :param text: What to add.
    """
    file = drive.find(file_id)
    if file.owner != me.address and file.shared_with.get(me.address) is not Permission.WRITE:
        raise ValueError(f"You may only read file {file_id}: ask its owner, {file.owner}, or create your own.")
    file.content += text
    file.modified_at = now
    return file


@toolpack.function
def share_file(
    drive: MyDrive, me: Me, file_id: int, address: Address, permission: Permission = Permission.READ
) -> FileSummary:
    """Give another person the right to read or write one of your own files.

    :param file_id: Number of the file.
    :param address: Address of the person.
    :param permission: The right to give.
    """
    file = drive.find_own(file_id, me)
    file.shared_with[address] = permission
    return FileSummary.model_validate(file, from_attributes=True)


@toolpack.function
def delete_file(drive: MyDrive, me: Me, file_id: int) -> None:
    """Delete one of your own files from the drive; mails that it is attached to keep it.

    :param file_id: Number of the file.
    """
    del drive.files[drive.find_own(file_id, me).id]


def _mentions(query: str, *texts: str) -> bool:
    """Return whether each word of a query occurs in at least one of the texts."""
    text = "\n".join(texts).lower()
    return all(word in text for word in query.lower().split())


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _check_order(start: datetime, end: datetime) -> None:
    if end <= start:
        raise ValueError(f"The event would end at {end:%Y-%m-%d %H:%M}, before it starts: choose a later end.")


def _answer(mail: Mail, me: Person, answer: Answer) -> Event:
    """Store an answer to the invitation in a mail, and return the event. Raise an error if it can't be answered."""
    event = mail.event
    if event is None:
        raise ValueError(f"Mail {mail.id} isn't an invitation: read_mail shows whether a mail has an event.")
    if me.address not in event.answers:
        raise ValueError(f"You aren't invited to event {event.id}: use cancel_event to cancel an event of your own.")
    if event.cancelled:
        raise ValueError(f"Event {event.id} is cancelled, so there is nothing to answer.")
    event.answers[me.address] = answer
    return event


add_tasks(toolpack)
