"""Tasks for the errands. In each task the agent must wait, notice an event, or act before a deadline.

The evaluators check the world and the times of calls. `rollout.reactions` has the seconds between an event and the
agent's next change. An agent that orders, buys, books or sends anything else fails.
"""

from datetime import datetime, timedelta
from typing import Any

from toolpack_server import Rollout, Toolpack, says

JONAS, LENA = "jonas@home.example", "lena@home.example"
FARES = (84, 79, 72, 66, 58, 71, 63, 75, 80, 92, 95, 99)
CHEAP, CODE = 60, "K7-204"
REACTION_SECONDS = 300


def add_tasks(toolpack: Toolpack) -> None:
    """Register the tasks."""
    _easy(toolpack)
    _medium(toolpack)
    _hard(toolpack)


def _easy(toolpack: Toolpack) -> None:
    @toolpack.task(
        "kettle",
        "Order a kettle. When the courier rings, take it in within five minutes.",
        solution=[("order", {"item": "kettle"}), ("wait", {"seconds": 7200}), ("take_in", {})],
        tags=["easy", "notice"],
    )
    def kettle(rollout: Rollout[Any]) -> None:
        _only(rollout, parcels=[("kettle", None)])
        _answered_the_door(rollout)

    @toolpack.task(
        "shoe-size",
        f"Send Jonas ({JONAS}) one mail with the subject 'Size?', wait for his answer, and tell me his shoe size.",
        solution=[
            ("send_mail", {"recipient": JONAS, "subject": "Size?"}),
            ("wait", {"seconds": 7200}),
            ("list_mails", {}),
        ],
        answer="43",
        tags=["easy", "notice"],
    )
    def shoe_size(rollout: Rollout[Any]) -> None:
        _only(rollout, mails=[(JONAS, "Size?")])
        _heard_from_jonas(rollout)
        right = says(rollout.answer, "43") and not says(rollout.answer, "52")
        rollout.check("the answer says only 43", right, rollout.answer[:200])

    @toolpack.task(
        "bread",
        "The oven is hot. Bake the bread: it takes 45 minutes, and burns after 55.",
        solution=[
            ("put_bread_in", {}),
            ("wait", {"seconds": 2700, "until_something_happens": False}),
            ("take_bread_out", {}),
        ],
        tags=["easy", "time"],
    )
    def bread(rollout: Rollout[Any]) -> None:
        _only(rollout, bread="done, on the table")


def _medium(toolpack: Toolpack) -> None:
    @toolpack.task(
        "cheap-fare",
        f"Buy one ticket for the night train as soon as it costs less than {CHEAP} euros. You get a fare alert then. "
        "The fare moves again soon.",
        events=[{**_CHEAP, "notice": f"Fare alert: the night train costs less than {CHEAP} euros."}],
        solution=[("wait", {"seconds": 10_800}), ("get_fare", {}), ("buy_ticket", {})],
        tags=["medium", "notice"],
    )
    def cheap_fare(rollout: Rollout[Any]) -> None:
        _only(rollout, tickets=[58])
        _reacted(rollout, "fare_is_low")

    @toolpack.task(
        "swim-lane",
        "Lanes in the pool can be booked from 10:00 on, and are gone three minutes later. Book one for tonight.",
        events=[
            {"name": "booking_opens", "at": "1h", "offer": "book_lane"},
            {"name": "booking_ends", "at": "1h 3m", "withdraw": "book_lane"},
        ],
        solution=[("wait", {"seconds": 3600, "until_something_happens": False}), ("book_lane", {})],
        tags=["medium", "time"],
    )
    def swim_lane(rollout: Rollout[Any]) -> None:
        _only(rollout, lanes=1)
        _reacted(rollout, "booking_opens")

    @toolpack.task(
        "form",
        f"Submit the form at the registry, which closes at 09:45. Jonas ({JONAS}) knows the code that belongs on it. "
        "Ask him in one mail with the subject 'Code?'.",
        options={"answer": f"The code is {CODE}."},
        events=[{"name": "registry_closes", "at": "45m", "withdraw": "submit_form"}],
        solution=[
            ("send_mail", {"recipient": JONAS, "subject": "Code?"}),
            ("wait", {"seconds": 7200}),
            ("list_mails", {}),
            ("submit_form", {"code": CODE}),
        ],
        tags=["medium", "deadline"],
    )
    def form(rollout: Rollout[Any]) -> None:
        _only(rollout, mails=[(JONAS, "Code?")], forms=[CODE])
        _heard_from_jonas(rollout, before="submit_form")

    @toolpack.task(
        "shoes",
        f"Jonas ({JONAS}) needs shoes. Ask him in one mail with the subject 'Size?'. Order 'shoes' in his size, and "
        "take them in within five minutes after the courier has rung.",
        options={"answer": "41, they run large."},
        solution=[
            ("send_mail", {"recipient": JONAS, "subject": "Size?"}),
            ("wait", {"seconds": 7200}),
            ("list_mails", {}),
            ("order", {"item": "shoes", "size": 41}),
            ("wait", {"seconds": 7200}),
            ("take_in", {}),
        ],
        tags=["medium", "notice"],
    )
    def shoes(rollout: Rollout[Any]) -> None:
        _only(rollout, mails=[(JONAS, "Size?")], parcels=[("shoes", 41)])
        _heard_from_jonas(rollout, before="order")
        _answered_the_door(rollout)


def _hard(toolpack: Toolpack) -> None:
    @toolpack.task(
        "two-parcels",
        "Order a lamp and a rug, each once. Take each in within five minutes after its courier has rung.",
        solution=[
            ("order", {"item": "lamp"}),
            ("order", {"item": "rug"}),
            ("wait", {"seconds": 7200}),
            ("take_in", {}),
            ("wait", {"seconds": 7200}),
            ("take_in", {}),
        ],
        tags=["hard", "notice"],
    )
    def two_parcels(rollout: Rollout[Any]) -> None:
        _only(rollout, parcels=[("lamp", None), ("rug", None)])
        _answered_the_door(rollout)

    @toolpack.task(
        "fare-without-alert",
        f"Buy one ticket for the night train when it costs less than {CHEAP} euros, within five minutes after the fare "
        "has fallen. It moves each half hour, the first time at 09:30. Nobody tells you.",
        events=[_CHEAP],
        options={"fares": [84, 79, 55, 71]},
        solution=[
            ("wait", {"seconds": 1800, "until_something_happens": False}),
            ("get_fare", {}),
            ("wait", {"seconds": 1770, "until_something_happens": False}),
            ("get_fare", {}),
            ("buy_ticket", {}),
        ],
        tags=["hard", "time"],
    )
    def fare_without_alert(rollout: Rollout[Any]) -> None:
        _only(rollout, tickets=[55])
        _reacted(rollout, "fare_is_low")

    @toolpack.task(
        "friday",
        f"Send Lena ({LENA}) a mail with the subject 'Friday?'. If she hasn't answered two hours later, send the same "
        f"to Jonas ({JONAS}), within ten minutes. Tell me the name of the one who has time on Friday.",
        options={"answer": "Sure, I'll be there on Friday."},
        events=[{"name": "two_hours_later", "call": "send_mail", "where": {"/kwargs/recipient": LENA}, "delay": "2h"}],
        solution=[
            ("send_mail", {"recipient": LENA, "subject": "Friday?"}),
            ("wait", {"seconds": 7200}),
            ("list_mails", {}),
            ("send_mail", {"recipient": JONAS, "subject": "Friday?"}),
            ("wait", {"seconds": 7200}),
            ("list_mails", {}),
        ],
        answer="Jonas",
        tags=["hard", "time"],
    )
    def friday(rollout: Rollout[Any]) -> None:
        _only(rollout, mails=[(LENA, "Friday?"), (JONAS, "Friday?")])
        _reacted(rollout, "two_hours_later", 600)
        _heard_from_jonas(rollout)
        right = says(rollout.answer, "Jonas") and not says(rollout.answer, "Lena")
        rollout.check("the answer names only Jonas", right, rollout.answer[:200])

    @toolpack.task(
        "suitcase",
        "Order a suitcase, and take it in. Only then buy one ticket for the night train: without the suitcase I don't "
        "travel. The counter closes at 10:15.",
        events=[{"name": "counter_closes", "at": "1h 15m", "withdraw": "buy_ticket"}],
        solution=[
            ("order", {"item": "suitcase"}),
            ("wait", {"seconds": 7200}),
            ("take_in", {}),
            ("buy_ticket", {}),
        ],
        tags=["hard", "deadline"],
    )
    def suitcase(rollout: Rollout[Any]) -> None:
        bought = rollout.environment.tickets
        _only(rollout, parcels=[("suitcase", None)], tickets=bought[:1] or [0])
        _answered_the_door(rollout, 600)
        rollout.check("the ticket was bought after the suitcase was here", _in_order(rollout, "take_in", "buy_ticket"))


_CHEAP = {"name": "fare_is_low", "when": {"call": "get_fare", "where": {"/result": {"below": CHEAP}}}}


def _only(
    rollout: Rollout[Any],
    *,
    parcels: list[tuple[str, int | None]] | None = None,
    mails: list[tuple[str, str]] | None = None,
    tickets: list[int] | None = None,
    lanes: int = 0,
    forms: list[str] | None = None,
    bread: str = "dough",
) -> None:
    """Check that the agent has done these things and no others, and that all parcels are taken in."""
    after = rollout.environment
    sent = [(mail.recipient, mail.subject) for mail in after.mails if mail.sender == "me"]
    ordered = [(parcel.item, parcel.size) for parcel in after.parcels.values()]
    for name, actual, expected in (
        ("the orders", sorted(ordered, key=str), sorted(parcels or [], key=str)),
        ("the mails", sent, mails or []),
        ("the tickets", after.tickets, tickets or []),
        ("the lanes", after.lanes, lanes),
        ("the forms", after.forms, forms or []),
        ("the bread", str(after.bread), bread),
    ):
        rollout.check(name, actual == expected, f"{actual} instead of {expected}" if actual != expected else "")
    states = [str(parcel.state) for parcel in after.parcels.values()]
    rollout.check("all parcels are taken in", all(state == "taken in" for state in states), str(states))


def _reacted(rollout: Rollout[Any], event: str, seconds: float = REACTION_SECONDS) -> None:
    """Check that the agent's next change after an event came in time."""
    seconds_needed = rollout.reactions.get(event)
    rollout.check(
        f"in time after {event}", seconds_needed is not None and seconds_needed <= seconds, f"{seconds_needed} s"
    )


def _heard_from_jonas(rollout: Rollout[Any], before: str = "") -> None:
    """Check that Jonas has answered, before the agent's first call of the function `before` if it isn't empty."""
    order = ["send_mail", "jonas_answers", *([before] if before else [])]
    rollout.check("Jonas has answered before that", _in_order(rollout, *order))


def _in_order(rollout: Rollout[Any], *names: str) -> bool:
    """Return whether all these functions and events were called, and their first calls came in this order."""
    names_called = [call.event or call.function for call in rollout.calls if call.error is None]
    positions = [names_called.index(name) if name in names_called else -1 for name in names]
    return -1 not in positions and positions == sorted(positions)


def _answered_the_door(rollout: Rollout[Any], seconds: float = REACTION_SECONDS) -> None:
    """Check that the agent opened the door within this time after each ring of a courier."""
    rings = [_time(call) for call in rollout.calls if call.event == "courier_rings"]
    opened = [_time(call) for call in rollout.calls if call.function == "take_in" and call.error is None]
    times = [min((time - ring for time in opened if time >= ring), default=None) for ring in rings]
    in_time = bool(times) and all(time is not None and time <= timedelta(seconds=seconds) for time in times)
    rollout.check("the door was opened in time", in_time, str([time and time.total_seconds() for time in times]))


def _time(call: Any) -> datetime:
    time: datetime = call.at
    return time
