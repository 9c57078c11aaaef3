"""One person's errands on a morning, in a world that moves: couriers, mails, a fare, an oven.

A courier comes between 30 and 60 minutes after each order, and waits ten minutes. Jonas answers mails, Lena doesn't.
The fare of the night train changes every half hour. Bread is done after 45 minutes and burnt ten minutes later. A call
takes 30 seconds.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field

from toolpack_server import Depends, TaskEnvironment, Toolpack
from toolpacks._errands_tasks import FARES, JONAS, add_tasks


class ParcelState(StrEnum):
    """The location of a parcel."""

    ORDERED = "ordered"
    AT_THE_DOOR = "at the door"
    TAKEN_IN = "taken in"
    AT_THE_DEPOT = "at the depot"


class Parcel(BaseModel):
    """An order of one item."""

    id: int
    item: str
    size: int | None = None
    state: ParcelState = ParcelState.ORDERED


class Mail(BaseModel):
    """A mail. Mails that the person sent have the sender `me`."""

    sender: str
    recipient: str
    subject: str
    text: str = ""


class Bread(StrEnum):
    """The state of the bread, and its place."""

    DOUGH = "dough"
    IN_THE_OVEN = "in the oven"
    DONE = "done, in the oven"
    BURNT = "burnt, in the oven"
    RAW_ON_THE_TABLE = "raw, on the table"
    ON_THE_TABLE = "done, on the table"
    BURNT_ON_THE_TABLE = "burnt, on the table"


OUT_OF_THE_OVEN = {
    Bread.IN_THE_OVEN: Bread.RAW_ON_THE_TABLE,
    Bread.DONE: Bread.ON_THE_TABLE,
    Bread.BURNT: Bread.BURNT_ON_THE_TABLE,
}


class ErrandsEnvironment(TaskEnvironment):
    """The state of one person's errands.

    Attributes:
        fares: Fares of the night train in euros: the current fare, then the later fares.
        tickets: The fare of each ticket that was bought.
        lanes: Number of lanes in the pool that were booked.
        forms: The code on each form that was submitted.
        answer: The text of Jonas's answers.
    """

    parcels: dict[int, Parcel] = Field(default_factory=dict)
    mails: list[Mail] = Field(default_factory=list)
    fares: list[int] = Field(default_factory=list)
    tickets: list[int] = Field(default_factory=list)
    lanes: int = 0
    forms: list[str] = Field(default_factory=list)
    bread: Bread = Bread.DOUGH
    answer: str = ""


def begin_errands(
    *,
    fares: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None = None,
    answer: str = "Shoes 43, jackets 52.",
) -> ErrandsEnvironment:
    """Build the world of one morning.

    :param fares: Fares of the night train in euros: the current fare, then the fare of each following half hour.
    :param answer: The text of Jonas's answers.
    """
    return ErrandsEnvironment(fares=fares or [*FARES], answer=answer)


toolpack = Toolpack("errands", begin_errands, opt_in=True, begins="2026-03-02T09:00:00Z", step_seconds=30)

Parcels = Annotated[dict[int, Parcel], Depends("parcels")]
Mails = Annotated[list[Mail], Depends("mails")]
Fares = Annotated[list[int], Depends("fares")]
World = Annotated[ErrandsEnvironment, Depends(lambda environment: environment)]


# Parcels


@toolpack.function(read_only=True)
def list_parcels(parcels: Parcels) -> list[Parcel]:
    """List all orders."""
    return [*parcels.values()]


@toolpack.function
def order(parcels: Parcels, item: str, size: int | None = None) -> Parcel:
    """Order an item. A courier brings it today, and waits ten minutes at the door.

    :param item: What to order.
    :param size: The size, for clothes and shoes.
    """
    parcel = Parcel(id=len(parcels) + 1, item=item, size=size)
    parcels[parcel.id] = parcel
    return parcel


@toolpack.function
def take_in(parcels: Parcels) -> list[Parcel]:
    """Open the door, and take in the parcels that couriers have brought."""
    brought = [parcel for parcel in parcels.values() if parcel.state is ParcelState.AT_THE_DOOR]
    if not brought:
        raise ValueError("Nobody is at the door.")
    for parcel in brought:
        parcel.state = ParcelState.TAKEN_IN
    return brought


@toolpack.event(
    call="order",
    delay="30m",
    spread="30m",
    args={"parcel_id": {"$get": "/result/id"}},
    notice="The doorbell rings.",
)
def courier_rings(parcels: Parcels, parcel_id: int) -> None:
    """Bring a parcel to the door.

    :param parcel_id: Number of the order.
    """
    parcels[parcel_id].state = ParcelState.AT_THE_DOOR


@toolpack.event(call="courier_rings", by="world", delay="10m", args={"parcel_id": {"$get": "/kwargs/parcel_id"}})
def courier_leaves(parcels: Parcels, parcel_id: int) -> None:
    """Take a parcel to the depot if nobody has taken it in.

    :param parcel_id: Number of the order.
    """
    if parcels[parcel_id].state is ParcelState.AT_THE_DOOR:
        parcels[parcel_id].state = ParcelState.AT_THE_DEPOT


# Mails


@toolpack.function(read_only=True)
def list_mails(mails: Mails) -> list[Mail]:
    """List all mails, oldest first."""
    return mails


@toolpack.function
def send_mail(mails: Mails, recipient: str, subject: str, text: str = "") -> Mail:
    """Send a mail.

    :param recipient: Address of one person.
    :param subject: What it is about.
    :param text: What to write, if the subject isn't enough.
    """
    mails.append(Mail(sender="me", recipient=recipient, subject=subject, text=text))
    return mails[-1]


@toolpack.event(
    call="send_mail",
    where={"/kwargs/recipient": JONAS},
    args={"subject": {"$get": "/kwargs/subject"}},
    delay="20m",
    spread="20m",
    notice="A mail from Jonas arrives.",
)
def jonas_answers(world: World, subject: str) -> None:
    """Add Jonas's answer to a mail.

    :param subject: Subject of the mail.
    """
    world.mails.append(Mail(sender=JONAS, recipient="me", subject=f"Re: {subject}", text=world.answer))


# The night train


@toolpack.function(read_only=True)
def get_fare(fares: Fares) -> int:
    """Get the current fare of the night train, in euros."""
    return fares[0]


@toolpack.function
def buy_ticket(world: World) -> int:
    """Buy a ticket for the night train at the current fare, and return the fare."""
    world.tickets.append(world.fares[0])
    return world.fares[0]


@toolpack.event(every="30m", count=len(FARES) - 1)
def fare_moves(fares: Fares) -> None:
    """Change the fare of the night train."""
    if len(fares) > 1:
        del fares[0]


# At home and in town


@toolpack.function(read_only=True)
def look_at_bread(world: World) -> Bread:
    """Look what the bread is like, and where it is."""
    return world.bread


@toolpack.function
def put_bread_in(world: World) -> Bread:
    """Put the dough into the hot oven. Bread bakes for 45 minutes, and burns after 55."""
    if world.bread is not Bread.DOUGH:
        raise ValueError("There is no dough left.")
    world.bread = Bread.IN_THE_OVEN
    return world.bread


@toolpack.function
def take_bread_out(world: World) -> Bread:
    """Take the bread out of the oven."""
    if world.bread not in OUT_OF_THE_OVEN:
        raise ValueError("The oven is empty.")
    world.bread = OUT_OF_THE_OVEN[world.bread]
    return world.bread


@toolpack.event(call="put_bread_in", delay="45m")
def bread_is_done(world: World) -> None:
    """Finish baking."""
    if world.bread is Bread.IN_THE_OVEN:
        world.bread = Bread.DONE


@toolpack.event(call="put_bread_in", delay="55m")
def bread_burns(world: World) -> None:
    """Burn bread that is still in the oven."""
    if world.bread is Bread.DONE:
        world.bread = Bread.BURNT


@toolpack.function
def book_lane(world: World) -> str:
    """Book a lane in the pool for tonight."""
    world.lanes += 1
    return "booked"


@toolpack.function
def submit_form(world: World, code: str) -> str:
    """Submit the form at the registry.

    :param code: The code that belongs on the form.
    """
    world.forms.append(code)
    return "received"


add_tasks(toolpack)
