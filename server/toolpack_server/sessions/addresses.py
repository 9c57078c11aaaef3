"""Addresses of a session: their names, functions, limits and permissions.

An address is the access of one participant to a session. Each session has an address named `agent`, which by default
offers all functions without a limit. Features can change the functions and limits, and add addresses to a session. The
code that serves an address reads only this module's objects, so it doesn't depend on the features.
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
    """The access of one participant to a session.

    Attributes:
        name: Name of the address, such as `agent` or a participant's name.
        functions: Names of the functions that this address offers. None means all functions of the session.
        max_calls: Maximum number of calls, including nested and failed calls. None means no limit.
        prompt: Instructions for the participant, as a string or a list of messages. None means no instructions.
        answers: Whether the participant is allowed to submit the session's answer.
        others: Names of the session's other addresses.
        view: Changes to the functions that the participant sees. None means no changes.
    """

    name: str
    functions: frozenset[str] | None = None
    max_calls: int | None = None
    prompt: Any = None
    answers: bool = False
    others: tuple[str, ...] = ()
    view: "View | None" = None

    def listed(self, functions: Sequence[PackFunction]) -> list[PackFunction]:
        """Return the functions that this address offers, as the participant sees them.

        Args:
            functions: The functions of the session.
        """
        allowed = [function for function in functions if self.functions is None or is_offered(function, self.functions)]
        return allowed if self.view is None else self.view.listed(allowed)

    def has(self, function: PackFunction) -> bool:
        """Return whether this address offers a function of the session."""
        return bool(self.listed([function]))


class View(NamedTuple):
    """Changes to the functions that a participant sees. It can hide functions, or change names and descriptions.

    Attributes:
        listed: Accepts the address's functions, and returns them as the participant sees them.
        lasts: Whether the view stays the same after calls at the address.
    """

    listed: Callable[[Sequence[PackFunction]], list[PackFunction]]
    lasts: bool


def compose_views(views: "Sequence[View]") -> "View | None":
    """Return one view that applies several views in order, or None if there are no views."""
    if len(views) < 2:  # noqa: PLR2004 - a single view needs no composition
        return views[0] if views else None

    def listed(functions: Sequence[PackFunction]) -> list[PackFunction]:
        result = [*functions]
        for view in views:
            result = view.listed(result)
        return result

    return View(listed, all(view.lasts for view in views))


class AddressTool(Protocol):
    """Tool that an address offers besides functions, because some protocols have only tools.

    Attributes:
        name: Name of the tool. If a function has the same name, the address offers the function instead.
    """

    name: str
    description: str
    parameters: type[Parameters]

    def is_offered(self, address: Address) -> bool:
        """Return whether the address offers the tool."""
        ...

    async def use(self, session_id: str, owner: str, by: str, arguments: Any, call_id: str | None) -> Any:
        """Run the tool, and return its result as a JSON value.

        Args:
            session_id: The session.
            owner: The owner of the session.
            by: Name of the address.
            arguments: An instance of `parameters`.
            call_id: Idempotency key of the request, if it has one.
        """


class NamedAddresses:
    """Additional addresses of sessions besides the agent's. A feature's subclass defines them. This class adds none.

    Attributes:
        purpose: String for deriving the keys of the additional addresses from the server's key.
        member: Name of the field in a session's description that lists the paths of each address by name. "" omits this
            field.
    """

    purpose = "address"
    member = ""

    def of(self, feature_options: Mapping[str, Any]) -> Mapping[str, Address] | None:
        """Return a session's addresses by name, including the agent's, or None if it has only the agent's.

        Args:
            feature_options: Feature data of the session's recipe.
        """


class AddressHook:
    """Hook for features that change the addresses of sessions. A subclass overrides the methods that it needs.

    Attributes:
        of_option: Name of the recipe data that `fill` needs. `fill` is called only for sessions with this data. ""
            means that it is called for all sessions with data of any feature.
    """

    of_option = ""

    def fill(self, session: StoredSession, address: Address) -> Address:  # noqa: ARG002 - a subclass uses it
        """Return a copy of the address with the functions, limit, prompt and permissions set by the feature.

        The method might run a toolpack's code.
        """
        return address

    def view(self, session: StoredSession, head: Head, name: str) -> View | None:
        """Return the feature's current view for the named address, or None if the feature doesn't change it."""


class Addresses:
    """Addresses of all sessions. `Service` fills the attributes from the features before the first request.

    Attributes:
        named: Additional addresses of sessions.
        paths: Templates for the URL paths of an address, by the field of results that contains the path. `{key}` stands
            for the address's key.
        hooks: Hooks of features.
        tools: Tools that addresses offer besides functions.
    """

    def __init__(self) -> None:
        self.named = NamedAddresses()
        self.paths = {"agent_path": "/agents/{key}"}
        self.hooks: list[AddressHook] = []
        self.tools: list[AddressTool] = []

    @staticmethod
    def is_plain(session: StoredSession) -> bool:
        """Return whether no feature changes a session's addresses."""
        return not Recipe.of(session).feature_options

    def of(self, session: StoredSession, name: str) -> Address:
        """Return an address of a session. The method might run a toolpack's code.

        Raises:
            ClassesChangedError: An object that a feature needs for the address is no longer loaded.
            InvalidParamsError: The session has no address with this name.
        """
        feature_options = Recipe.of(session).feature_options
        named = self.named.of(feature_options) or {AGENT: Address(AGENT)}
        if name not in named:
            raise InvalidParamsError(f"The session has no address named {shown(name)!r}.")
        address = named[name]
        if feature_options:
            for hook in self.hooks:
                if not hook.of_option or hook.of_option in feature_options:
                    address = hook.fill(session, address)
        return address
