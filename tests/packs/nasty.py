"""One pack with all the features of real packs that a server could get wrong."""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict, deque
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field, PrivateAttr, field_validator, model_validator

from server import Depends, TaskEnvironment, Toolpack

validations: list[str] = []

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int


class Tag(BaseModel, frozen=True):
    name: str


class Person(BaseModel):
    name: str
    colour: Colour = Colour.RED
    friends: list[Person] = Field(default_factory=list)
    _visits: int = PrivateAttr(default=0)

    @field_validator("name")
    @classmethod
    def title(cls, value: str) -> str:
        validations.append("name")
        return value.title()


class Child(Person):
    toys: set[str] = Field(default_factory=set)


class Box(BaseModel, Generic[T]):
    content: T


class NastyEnvironment(TaskEnvironment):
    people: list[Person] = Field(default_factory=list)
    by_name: dict[str, Person] = Field(default_factory=dict)
    boss: Person | None = None
    places: tuple[Point, ...] = (Point(1, 2),)
    numbers: set[int] = {3, 1, 2}
    tags: frozenset[Tag] = frozenset({Tag(name="b"), Tag(name="a")})
    by_tag: defaultdict[str, set[str]] = Field(default_factory=lambda: defaultdict(set))
    recent: deque[str] = Field(default_factory=lambda: deque(maxlen=3))
    price: Decimal = Decimal("1.10")
    at: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)
    box: Box[int] = Field(default_factory=lambda: Box[int](content=1))
    rank: Rank = Rank.LOW
    wire_name: str = Field("plain", alias="wireName")
    rebuilt: int = 0
    _secret: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def rebuild(self) -> NastyEnvironment:
        validations.append("environment")
        self.rebuilt += 1
        if not self.people:
            ann = Child(name="ann", toys={"kite", "ball"})
            bob = Person(name="bob", friends=[ann])
            self.people = [ann, bob]
        self.by_name = {person.name: person for person in self.people}
        self.boss = self.people[0]
        return self


toolpack = Toolpack("nasty", NastyEnvironment)

People = Annotated[dict[str, Person], Depends("by_name")]
Everything = Annotated[NastyEnvironment, Depends(lambda env: env)]


class Wish(BaseModel):
    """What to change about somebody."""

    colour: Colour = Field(description="The new colour.")
    rank: Literal["low", "high"] = "low"
    nested: Wish | None = None


@toolpack.function
def wish(by_name: People, name: str, wish: Wish, times: int | str = 1) -> str:
    """Grant a wish.

    Somebody gets a new colour. None is no colour.

    Args:
        name: Whose wish.
        wish: The wish
            itself.
        times (int | str, optional): How often. Defaults to 1.

    Returns:
        What was done.
    """
    person = by_name[name]
    person.colour = wish.colour
    person._visits += int(times)
    return f"{type(wish).__name__} {wish.colour!r} {person._visits}"


@toolpack.function
async def befriend(env: Everything, one: str, other: str) -> int:
    """Make friends.

    Args:
        one: The first.
        other: The second.
    """
    await asyncio.sleep(0)
    env.by_name[one].friends.append(env.by_name[other])
    env._secret.append(one)
    return len(env._secret)


@toolpack.function
def rename_boss(env: Everything, name: str) -> bool:
    """Rename the boss, who is in the list of people too.

    Args:
        name: The new name.
    """
    assert env.boss is not None
    env.boss.name = name
    return env.people[0].name == name and env.by_name["Ann"] is env.boss


@toolpack.function
def tag(env: Everything, name: str, tags: list[str]) -> dict[str, set[str]]:
    """Tag somebody.

    Args:
        name: Who.
        tags: The tags.
    """
    env.by_tag[name].update(tags)
    env.tags = env.tags | {Tag(name=text) for text in tags}
    env.recent.extend(tags)
    env.places = (*env.places, Point(len(tags), 0))
    return env.by_tag


@toolpack.function
def half_done(env: Everything) -> None:
    """Change half of the world, then raise."""
    env.people.pop()
    env.by_name.clear()
    env.numbers.add(99)
    env._secret.append("half")
    env.rank = Rank.HIGH
    raise RuntimeError("only half was done")


@toolpack.function(read_only=True)
def inspect_state(env: Everything) -> dict[str, Any]:
    """Get properties of the environment that its JSON doesn't show."""
    return {
        "same": env.boss is env.people[0] and env.by_name[env.people[1].name] is env.people[1],
        "visits": [person._visits for person in env.people],
        "types": [type(person).__name__ for person in env.people],
        "secret": env._secret,
        "rebuilt": env.rebuilt,
        "set": sorted(env.model_fields_set),
        "place": type(env.places[-1]).__name__,
        "tags": type(env.tags).__name__,
        "maxlen": env.recent.maxlen,
        "factory": env.by_tag.default_factory is set,
        "friends": [len(person.friends) for person in env.people],
        "utc": env.at.tzinfo is UTC,
    }
