"""A register of people: a dictionary of objects. Each function uses one person."""

from typing import Annotated

from pydantic import BaseModel

from toolpack_server import Depends, TaskEnvironment, Toolpack


class Visit(BaseModel):
    place: str
    minutes: int


class Person(BaseModel):
    name: str
    street: str = "Long Street 17"
    town: str = "Springfield"
    visits: list[Visit] = []


class RegisterEnvironment(TaskEnvironment):
    people: dict[str, Person] = {}  # noqa: RUF012 - pydantic copies it


def build(count: int = 5000) -> RegisterEnvironment:
    """Build the register.

    Args:
        count: Number of people.
    """
    visits = [Visit(place=f"place {number}", minutes=number) for number in range(5)]
    people = {
        f"p{i}": Person(name=f"Person {i}", visits=[visit.model_copy() for visit in visits]) for i in range(count)
    }
    return RegisterEnvironment(people=people)


toolpack = Toolpack("register", build)
People = Annotated[dict[str, Person], Depends("people")]


@toolpack.function(read_only=True)
def look(people: People, key: str) -> Person:
    """Return a person.

    :param key: Key of the person.
    """
    return people[key]


@toolpack.function
def move(people: People, key: str, town: str) -> str:
    """Change a person's town, and return the name.

    :param key: Key of the person.
    :param town: The new town.
    """
    people[key].town = town
    return people[key].name
