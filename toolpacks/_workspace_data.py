"""Initial data of the workspace: a week in March at Tidewater Charts, which makes charts for sailors.

Each call of `open_workspace` creates new objects, so a change of one environment doesn't change another.
"""

from datetime import datetime, timedelta
from typing import Any

from toolpacks import _workspace_texts as texts
from toolpacks._workspace_models import (
    Answer,
    Calendar,
    Drive,
    Event,
    File,
    Folder,
    Mail,
    Mailbox,
    Permission,
    Person,
    WorkspaceEnvironment,
    in_utc,
)

NORA = "nora.lind@tidewater.example"
OMAR = "omar.haddad@tidewater.example"
PRIYA = "priya.raman@tidewater.example"
ELIF = "elif.kaya@tidewater.example"
JONAS = "jonas.weber@tidewater.example"
SOFIA = "sofia.bianchi@lagoonsailing.example"
TOM = "tom.becker@pierhouse.example"
DENTIST = "practice@vogel-dental.example"


def open_workspace() -> WorkspaceEnvironment:
    """Build the workspace of Nora Lind, product lead at Tidewater Charts, on Monday, 2 March 2026, at nine."""
    files = _files()
    events = _events()
    return WorkspaceEnvironment(
        me=Person(name="Nora Lind", address=NORA, about="Product lead, Tidewater Charts"),
        contacts=_contacts(),
        drive=Drive(files={file.id: file for file in files.values()}),
        calendar=Calendar(events={event.id: event for event in events.values()}),
        mailbox=Mailbox(mails={mail.id: mail for mail in _mails(files, events)}),
    )


def _contacts() -> list[Person]:
    return [
        Person(name="Omar Haddad", address=OMAR, about="Engineering lead, phone extension 21"),
        Person(name="Priya Raman", address=PRIYA, about="Finance; every spending above 500 euros goes through her"),
        Person(name="Elif Kaya", address=ELIF, about="Design; works Monday to Thursday"),
        Person(name="Jonas Weber", address=JONAS, about="Sales, looks after Lagoon Sailing"),
        Person(name="Sofia Bianchi", address=SOFIA, about="Fleet manager at Lagoon Sailing, our pilot customer"),
        Person(name="Tom Becker", address=TOM, about="Manages the office building, Pier House"),
        Person(name="Dr Vogel's practice", address=DENTIST, about="Dentist, Kanalweg 3"),
    ]


def _files() -> dict[str, File]:
    read, write = Permission.READ, Permission.WRITE
    everybody = dict.fromkeys([OMAR, ELIF, JONAS], read)
    return {
        "plan": _file(1, "harbour-charts-plan.md", "2026-02-26 15:10", texts.PLAN, {OMAR: write, ELIF: write}),
        "budget": _file(2, "budget-2026-q1.csv", "2026-02-27 11:30", texts.BUDGET, {NORA: read}, by=PRIYA),
        "offer": _file(3, "lagoon-sailing-offer.md", "2026-02-25 09:45", texts.OFFER, {NORA: write}, by=JONAS),
        "feedback": _file(4, "pilot-feedback.md", "2026-02-28 08:20", texts.FEEDBACK, {}),
        "incident": _file(5, "incident-tide-times.md", "2026-02-24 17:55", texts.INCIDENT, {NORA: write}, by=OMAR),
        "trip": _file(6, "trip-to-venice.md", "2026-02-20 18:02", texts.TRIP, {}),
        "first week": _file(7, "first-week.md", "2026-01-19 10:00", texts.FIRST_WEEK, everybody),
        "names": _file(8, "name-ideas.txt", "2026-02-12 16:40", texts.NAMES, {NORA: read}, by=ELIF),
    }


def _events() -> dict[str, Event]:
    yes, no, pending = Answer.ACCEPTED, Answer.DECLINED, Answer.PENDING
    return {
        "start": _event(21, "Week start", "2026-03-02 09:30", 15, {OMAR: yes, ELIF: yes, JONAS: yes}, at="Room 1"),
        "review": _event(22, "Night colours", "2026-03-03 10:00", 60, {NORA: pending, OMAR: yes}, by=ELIF, at="Room 2"),
        "budget": _event(23, "Budget talk", "2026-03-03 14:00", 45, {NORA: pending}, by=PRIYA, at="Priya's desk"),
        "dentist": _event(24, "Dentist", "2026-03-04 08:00", 45, {}, at="Kanalweg 3"),
        "plan": _event(
            25, "Release planning", "2026-03-04 13:00", 90, {OMAR: yes, ELIF: pending, JONAS: no}, at="Room 1"
        ),
        "call": _event(26, "Call with Lagoon Sailing", "2026-03-05 15:00", 30, {SOFIA: yes, JONAS: yes}, at="By phone"),
        "drill": _event(27, "Fire drill", "2026-03-06 11:00", 20, {NORA: pending, OMAR: yes}, by=TOM, at="Car park"),
        "lunch": _event(28, "Lunch with Elif", "2026-03-09 12:00", 60, {ELIF: yes}, at="Fish stall, pier 4"),
        "venice": _event(29, "On board in Venice", "2026-03-12 10:00", 240, {NORA: yes}, by=SOFIA, at="Lagoon pier"),
        "retro": _event(30, "Look back: tide times", "2026-03-16 10:00", 60, {NORA: pending}, by=OMAR, at="Room 1"),
    }


def _mails(files: dict[str, File], events: dict[str, Event]) -> list[Mail]:
    return [
        _received(
            41,
            DENTIST,
            "2026-02-11 08:00",
            "Your appointment on 4 March",
            "Your appointment is on Wednesday at 8:00. To cancel it, please write at least 24 hours before.",
        ),
        _received(
            42,
            ELIF,
            "2026-02-12 16:45",
            "Name for the night mode",
            "I collect ideas in the attached file. Dog Watch leads. Please vote until the design review!",
            attachment=files["names"],
            folder=Folder.ARCHIVE,
        ),
        _received(
            43,
            SOFIA,
            "2026-02-18 10:00",
            "Invitation: On board in Venice",
            "We keep the whole morning free for you. Wear shoes with light soles.",
            event=events["venice"],
        ),
        _received(
            44,
            OMAR,
            "2026-02-24 18:00",
            "Tide times: what went wrong",
            'The report is attached. In short: time zone. Build 118 has the cure and is on all pilot boats but "Bora", '
            "whose tablet has been offline since Sunday. Could you ask Sofia to have it switched on?",
            attachment=files["incident"],
        ),
        _received(
            45,
            JONAS,
            "2026-02-25 09:50",
            "Offer to Lagoon Sailing",
            "The offer is attached. Sofia asked for 15 percent, I wrote 10. Can you live with that? Correct what you "
            "like in the file itself, it goes out on Thursday after the call.",
            attachment=files["offer"],
        ),
        _sent(
            46,
            [JONAS],
            "2026-02-25 10:20",
            "Re: Offer to Lagoon Sailing",
            "10 percent is fine. Let's talk about the rest before the call.",
            reply_to=45,
        ),
        _sent(
            47,
            [OMAR, ELIF, JONAS],
            "2026-02-26 15:15",
            "Invitation: Release planning",
            "Please look at the attached plan beforehand and bring what worries you.",
            event=events["plan"],
            attachment=files["plan"],
        ),
        _received(
            48,
            JONAS,
            "2026-02-26 16:05",
            "Re: Invitation: Release planning",
            "I'm at the boat fair on Wednesday, so I had to decline. Thursday morning would work for me.",
            reply_to=47,
        ),
        _received(
            49,
            ELIF,
            "2026-02-26 17:30",
            "Invitation: Night colours",
            "Three drafts, one hour, and then we choose. I'll bring a dark room.",
            event=events["review"],
        ),
        _received(
            50,
            PRIYA,
            "2026-02-27 11:40",
            "Invitation: Budget talk",
            "The figures are attached. Will the test tablets still be bought in March? And may I move what is left for "
            "translation to printing? Please accept, or tell me another time.",
            event=events["budget"],
            attachment=files["budget"],
        ),
        _received(
            51,
            SOFIA,
            "2026-02-27 14:12",
            "Pilot: two wishes",
            "The skippers are happy, but please: (1) something darker for the night, (2) the new wreck off the eastern "
            'mole. "Bora" was in the yard, its tablet is back on since this morning. See you on the 12th!',
        ),
        _received(
            52,
            TOM,
            "2026-02-27 16:30",
            "Invitation: Fire drill",
            "To all tenants: on Friday the alarm sounds at 11. Please leave by the stairs and meet in the car park.",
            event=events["drill"],
        ),
        _received(
            53,
            "news@chartweekly.example",
            "2026-02-28 06:00",
            "Chart Weekly 9: buoys, and who moves them",
            "This week: 14 buoys moved in the Elbe estuary, a museum of lighthouses, and a quiz.",
        ),
        _received(
            54,
            OMAR,
            "2026-03-01 20:15",
            "Invitation: Look back: tide times",
            "An hour to learn from the tide times. No blame, only what we change. I'd like to have Sofia's view too: "
            "can you ask her for three sentences?",
            event=events["retro"],
        ),
        _received(
            55,
            PRIYA,
            "2026-03-02 08:05",
            "Hotel in Venice",
            'Your hotel can be cancelled for free until Friday. Sofia offered a cabin on "Aurora" instead: should we '
            "take it? It would save 236 euros.",
        ),
    ]


def _file(
    number: int, name: str, modified_at: str, content: str, shared_with: dict[str, Permission], *, by: str = NORA
) -> File:
    return File(id=number, name=name, owner=by, modified_at=_at(modified_at), content=content, shared_with=shared_with)


def _event(
    number: int, title: str, start: str, minutes: int, answers: dict[str, Answer], *, at: str, by: str = NORA
) -> Event:
    return Event(
        id=number,
        title=title,
        start=_at(start),
        end=_at(start) + timedelta(minutes=minutes),
        organizer=by,
        answers=answers,
        location=at,
    )


def _received(number: int, sender: str, sent_at: str, subject: str, body: str, **more: Any) -> Mail:
    more = {"folder": Folder.INBOX, "read": sent_at < "2026-02-26", **more}
    return _mail(number, sent_at, sender=sender, recipients=[NORA], subject=subject, body=body, **more)


def _sent(number: int, recipients: list[str], sent_at: str, subject: str, body: str, **more: Any) -> Mail:
    more = {"folder": Folder.SENT, "read": True, **more}
    return _mail(number, sent_at, sender=NORA, recipients=recipients, subject=subject, body=body, **more)


def _mail(number: int, sent_at: str, *, attachment: File | None = None, **more: Any) -> Mail:
    return Mail(id=number, sent_at=_at(sent_at), attachments=[attachment] if attachment else [], **more)


def _at(time: str) -> datetime:
    return in_utc(datetime.fromisoformat(time))
