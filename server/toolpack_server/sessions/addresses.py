"""The addresses of a session: who has one, and what may be done there.

Each session has an address of the name `agent`, which by itself has all functions, without a limit. Features
fill in the rest, and may give a session further addresses; whatever serves an address asks it, and no feature.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.packs.pack_function import PackFunction, is_offered
from toolpack_server.protocol.parameters import Parameters
from toolpack_server.protocol.senders import AGENT
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.stores.base import Head, StoredSession


@dataclass(frozen=True, slots=True)
class Address:
    """An address of a session.

    Attributes:
        name: Whose it is.
        functions: The names of the functions that it has; None: all of the session's.
        max_calls: How many calls it has, nested ones and failed ones too; None: any number.
        prompt: What whoever has it is asked to do: a text, or messages; None: nothing.
        answers: It may submit the session's answer.
        others: The names of the session's other addresses.
        view: How the functions appear; None: as they are.
    """

    name: str
    functions: frozenset[str] | None = None
    max_calls: int | None = None
    prompt: Any = None
    answers: bool = False
    others: tuple[str, ...] = ()
    view: "View | None" = None

    def listed(self, functions: Sequence[PackFunction]) -> list[PackFunction]:
        """Get those of a session's functions that it has, as they appear there."""
        found = [each for each in functions if self.functions is None or is_offered(each, self.functions)]
        return found if self.view is None else self.view.listed(found)

    def has(self, function: PackFunction) -> bool:
        return bool(self.listed([function]))


class View(NamedTuple):
    """How functions appear at an address, for a while.

    Attributes:
        listed: Gets functions as they appear.
        lasts: They appear so whatever is called there.
    """

    listed: Callable[[Sequence[PackFunction]], list[PackFunction]]
    lasts: bool


class AddressTool(Protocol):
    """What an address offers besides functions, for agents whose protocol has only functions.

    Attributes:
        name: A function of this name is offered instead.
    """

    name: str
    description: str
    parameters: type[Parameters]

    def is_offered(self, address: Address) -> bool: ...

    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> Any:
        """Do it, and get its result as JSON; `arguments` is an instance of `parameters`."""


class NamedAddresses:
    """The addresses of sessions that have others besides that of their agent; by itself no session has.

    Attributes:
        purpose: What the keys of the others are for: those of another purpose don't open them.
        member: The member of a session's description that has the paths of each address, by name; "" for none.
    """

    purpose = "address"
    member = ""

    def of(self, kept: Mapping[str, Any]) -> Mapping[str, Address] | None:
        """Get a session's addresses by name, its agent's included; None if it has no other.

        Args:
            kept: What is kept with the session's recipe.
        """


class AddressHook:
    """A feature's part in the addresses of sessions; a subclass overrides what it needs."""

    def fill(self, session: StoredSession, address: Address) -> Address:  # noqa: ARG002 - a subclass uses it
        """Return the address with the functions, limit, prompt and rights that the feature gives it.

        May run a toolpack's code.
        """
        return address

    def view(self, session: StoredSession, head: Head, name: str) -> View | None:
        """Return how functions appear at an address now, or None if they appear as they are."""


class Addresses:
    """The addresses of all sessions. `Service` adds what features declare, before the first request.

    Attributes:
        named: Which others sessions have besides their agent's.
        paths: Where an address is served, by the member of results that says so: `{key}` stands for its key.
        hooks: The features' parts in addresses.
        tools: What addresses offer besides functions.
    """

    def __init__(self) -> None:
        self.named = NamedAddresses()
        self.paths = {"agent_path": "/agents/{key}"}
        self.hooks: list[AddressHook] = []
        self.tools: list[AddressTool] = []

    @staticmethod
    def is_plain(session: StoredSession) -> bool:
        """Whether no feature has anything to say of a session's addresses."""
        return not Recipe.of(session).kept

    def of(self, session: StoredSession, name: str) -> Address:
        """Get an address of a session; may run a toolpack's code.

        Raises:
            ClassesChangedError: What a feature needs for it is not loaded any more.
            InvalidParamsError: The session has none of this name.
        """
        kept = Recipe.of(session).kept
        named = self.named.of(kept) or {AGENT: Address(AGENT)}
        if name not in named:
            raise InvalidParamsError(f"The session has no address of the name {shown(name)!r}.")
        address = named[name]
        if kept:
            for hook in self.hooks:
                address = hook.fill(session, address)
        return address
