"""The models of the workspace: people, mails, events and files.

A mail refers to the same `Event` and `File` objects as the calendar and the drive, so a change shows in both places.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, StringConstraints, model_validator

from toolpack_server import TaskEnvironment


def in_utc(time: datetime) -> datetime:
    """Convert a time to UTC; a time without a zone is taken as UTC."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


Address = Annotated[str, StringConstraints(to_lower=True), Field(pattern=r"^[^@\s]+@[^@\s]+$")]
Time = Annotated[datetime, AfterValidator(in_utc)]


class Person(BaseModel):
    """A person with a mail address."""

    name: str
    address: Address
    about: str = ""


class Answer(StrEnum):
    """A participant's answer to an invitation."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    DECLINED = "declined"


class Event(BaseModel):
    """An event in a calendar. `answers` has every participant except the organizer."""

    id: int
    title: str
    start: Time
    end: Time
    organizer: Address
    answers: dict[Address, Answer] = Field(default_factory=dict)
    location: str = ""
    description: str = ""
    cancelled: bool = False


class Calendar(BaseModel):
    """Events by id, including cancelled ones."""

    events: dict[int, Event] = Field(default_factory=dict)

    def find(self, event_id: int) -> Event:
        """Return an event, or raise an error that says how to find one."""
        if event_id not in self.events:
            raise ValueError(f"There is no event {event_id}: list_events shows the ids.")
        return self.events[event_id]

    def find_own(self, event_id: int, me: Person) -> Event:
        """Return an event that `me` may change. Raise an error if it belongs to another person or is cancelled."""
        event = self.find(event_id)
        if event.organizer != me.address:
            raise ValueError(
                f"Only {event.organizer}, who organizes event {event_id}, can change it: send them a mail."
            )
        if event.cancelled:
            raise ValueError(f"Event {event_id} is cancelled: create a new one.")
        return event

    def between(self, start: datetime, end: datetime) -> list[Event]:
        """Return the events that overlap a period, earliest first."""
        overlapping = [event for event in self.events.values() if event.start < end and event.end > start]
        return sorted(overlapping, key=lambda event: event.start)


class TimeSlot(BaseModel):
    """A period of time."""

    start: Time
    end: Time


class Permission(StrEnum):
    """The access of another person to a file."""

    READ = "read"
    WRITE = "write"


class File(BaseModel):
    """A text file, with the people who may also use it."""

    id: int
    name: str
    owner: Address
    modified_at: Time
    content: str
    shared_with: dict[Address, Permission] = Field(default_factory=dict)


class FileSummary(BaseModel):
    """A file without its content."""

    id: int
    name: str
    owner: Address
    modified_at: Time
    shared_with: dict[Address, Permission]


class Drive(BaseModel):
    """Files by id."""

    files: dict[int, File] = Field(default_factory=dict)

    def find(self, file_id: int) -> File:
        """Return a file, or raise an error that says how to find one."""
        if file_id not in self.files:
            raise ValueError(f"There is no file {file_id}: search_files shows the ids.")
        return self.files[file_id]

    def find_own(self, file_id: int, me: Person) -> File:
        """Return a file that `me` may share and delete. Raise an error if it belongs to another person."""
        file = self.find(file_id)
        if file.owner != me.address:
            raise ValueError(f"Only {file.owner}, who owns file {file_id}, can share or delete it: send them a mail.")
        return file


class Folder(StrEnum):
    """The folder of a mail."""

    INBOX = "inbox"
    SENT = "sent"
    ARCHIVE = "archive"
    TRASH = "trash"


class Mail(BaseModel):
    """A mail. A mail with an event is an invitation."""

    id: int
    folder: Folder
    sender: Address
    recipients: list[Address]
    subject: str
    body: str
    sent_at: Time
    read: bool = False
    reply_to: int | None = None
    event: Event | None = None
    attachments: list[File] = Field(default_factory=list)


class MailSummary(BaseModel):
    """A mail without its body, event and attachments."""

    id: int
    folder: Folder
    sender: Address
    recipients: list[Address]
    subject: str
    sent_at: Time
    read: bool


class Mailbox(BaseModel):
    """Mails by id."""

    mails: dict[int, Mail] = Field(default_factory=dict)

    def find(self, mail_id: int) -> Mail:
        """Return a mail, or raise an error that says how to find one."""
        if mail_id not in self.mails:
            raise ValueError(f"There is no mail {mail_id}: search_mails shows the ids.")
        return self.mails[mail_id]


class WorkspaceEnvironment(TaskEnvironment):
    """One person's mailbox, calendar, drive and contacts at one moment; the clock doesn't advance."""

    now: Time = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    me: Person
    contacts: list[Person] = Field(default_factory=list)
    mailbox: Mailbox = Field(default_factory=Mailbox)
    calendar: Calendar = Field(default_factory=Calendar)
    drive: Drive = Field(default_factory=Drive)
    _last_id: int = PrivateAttr(default=0)

    @model_validator(mode="after")
    def _share_objects(self) -> Self:
        """Make mails refer to the events and files of the calendar and the drive, and set the last id.

        An environment that was read from JSON has a separate copy of an event in a mail and in the calendar.
        """
        files = dict(self.drive.files)
        for mail in self.mailbox.mails.values():
            if mail.event:
                mail.event = self.calendar.events.setdefault(mail.event.id, mail.event)
            mail.attachments = [files.setdefault(file.id, file) for file in mail.attachments]
        self._last_id = max(0, *self.mailbox.mails, *self.calendar.events, *files)
        return self

    def new_id(self) -> int:
        """Return an id that no mail, event or file has ever had, not even a deleted one."""
        self._last_id += 1
        return self._last_id

    def send(
        self,
        recipients: list[Address],
        subject: str,
        body: str,
        *,
        reply_to: int | None = None,
        event: Event | None = None,
        attachments: list[File] | None = None,
    ) -> Mail:
        """Send a mail and put it into the folder of sent mails."""
        mail = Mail(
            id=self.new_id(),
            folder=Folder.SENT,
            sender=self.me.address,
            recipients=recipients,
            subject=subject,
            body=body,
            sent_at=self.now,
            read=True,
            reply_to=reply_to,
            event=event,
            attachments=attachments or [],
        )
        self.mailbox.mails[mail.id] = mail
        return mail
