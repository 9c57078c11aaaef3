"""What a method is: its parameters' class, which also says its name, its result, who may call it, and answers it.

A method is declared once. The table that JSON-RPC dispatches by, the OpenRPC document, positional order, the
methods of agents' addresses, the log line and the Python client's methods all derive from its class.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Protocol, Self, TypeVar

from toolpack_server.base.settings import Settings
from toolpack_server.jsonio.strict import Fragment
from toolpack_server.observability.metrics import Metrics
from toolpack_server.protocol.parameters import Parameters
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.in_flight import BytesInFlight
from toolpack_server.rpc.listings import Listings
from toolpack_server.rpc.parsing import Parser
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.manager import SessionManager

F = TypeVar("F")


class App(Protocol):
    """What methods and features work with: the server without its transports."""

    settings: Settings  # `settings.of` gets a feature's
    key: bytes
    context: SessionContext
    sessions: SessionManager
    listings: Listings
    parser: Parser
    in_flight: BytesInFlight
    metrics: Metrics

    async def invoke(self, caller: Caller, method: str, params: Mapping[str, Any]) -> Any:
        """Call a method as a client or an agent does, without JSON, and return its result.

        Raises:
            RequestError: It was refused; or another one of `codes.REFUSALS`.
        """

    async def request(self, caller: Caller, method: str, params: Mapping[str, Any]) -> Any:
        """Call a method with JSON values, and return its result as JSON values.

        Raises:
            ReplyError: It was refused.
        """

    def document(self) -> Fragment:
        """Get the OpenRPC document."""

    def feature(self, kind: type[F]) -> F:
        """Get what a feature has made for this server, an `OperationHook` too, by its class."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a method's class says of it.

    Attributes:
        name: Its name in requests.
        result: The type of its result.
        summary: What it does, in one sentence.
        agents: What it does at an agent's address, where the session is implied; "" if it isn't there.
        agents_only: How a method that only agents' addresses have differs from the one of its name at `/rpc`.
        repeatable: Sending it twice has the effect of sending it once, so that clients may retry it.
        positional: The optional parameters that the Python client takes by position, too.
    """

    name: str
    result: Any
    summary: str
    agents: str = ""
    agents_only: str = ""
    repeatable: bool = True
    positional: tuple[str, ...] = ()


class Method(Parameters):
    """A method. An instance is a valid request.

    Its class is written `class TouchSession(Method, result=Literal[True])`. The name is that of the class in snake case
    unless `name` is given, the summary its docstring. The other keywords are those of `Declaration`.

    Raises:
        TypeError: The class names no result, or has no docstring.
    """

    declared: ClassVar[Declaration]

    def __init_subclass__(cls, *, name: str = "", result: Any = None, **more: Any) -> None:
        super().__init_subclass__()
        if result is None:
            if not hasattr(cls, "declared"):
                raise TypeError(f"The method {cls.__name__} names no result: write {cls.__name__}(Method, result=…).")
            return  # it changes another method, as the one without `session_id` does
        if not cls.__doc__:
            raise TypeError(f"The method {cls.__name__} needs a docstring: it is its summary.")
        name = name or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.declared = Declaration(name, result, cls.__doc__.strip(), **more)

    @classmethod
    @cache  # a model is dear to make
    def extended(cls, *more: type[Parameters], result: Any = None) -> type[Self]:
        """Get the method with further parameters, which come after its own, and with a result of a narrower type."""
        if not more and result in {None, cls.declared.result}:
            return cls
        members = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        metaclass: Any = type(cls)
        # The fields of a model are in the reverse order of its bases.
        made: type[Self] = metaclass(cls.__name__, (*reversed(more), cls), members)
        if result is not None:
            made.declared = replace(cls.declared, result=result)
        return made

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Get the names of the parameters, in positional order."""
        return tuple(sorted(cls.model_fields, key=lambda name: name != "session_id"))

    async def handle(self, caller: Caller, app: App) -> Any:
        """Answer the request.

        Raises:
            RequestError: It is refused.
        """
        raise NotImplementedError

    def log_fields(self, result: Any) -> dict[str, Any]:
        """Get what the log line of this request says of its result; only methods that define this have a log line.

        It has no options, environments or labels, which may hold anything.
        """
        raise NotImplementedError


def clients_methods(methods: Iterable[type[Method]]) -> list[type[Method]]:
    """Get those of all methods that `/rpc` has."""
    return [method for method in methods if not method.declared.agents_only]


def agents_methods(methods: Iterable[type[Method]]) -> list[type[Method]]:
    """Get those of all methods that agents' addresses have, without `session_id`."""
    return [
        method if method.declared.agents_only else _without_session(method)
        for method in methods
        if method.declared.agents or method.declared.agents_only
    ]


@cache
def _without_session(method: type[Method]) -> type[Method]:
    """Get a method that doesn't take `session_id`, which `JsonRpc` sets to the session of the address."""

    class AtAddress(method):  # type: ignore[valid-type,misc] # mypy knows no computed base classes
        session_id: ClassVar[str]
        declared = replace(method.declared, summary=method.declared.agents)

    return AtAddress
