"""Base class of JSON-RPC methods, and the interface of the server that methods and features use.

A method is declared once, as a class. Its fields are the parameters, its keywords are the name, the result type and
other properties, and its `handle` answers a request. The dispatch table, the OpenRPC document, the order of positional
parameters, the methods of agents' addresses, the log line and the Python client all derive from this class.
"""

import re
from collections.abc import Callable, Iterable, Mapping
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

Prepare = Callable[[Any], None]
"""Changes the validated request of a call from within the server, before the request is handled."""


class App(Protocol):
    """The server without its transports, as methods and features use it."""

    settings: Settings  # `settings.of` returns a feature's settings
    key: bytes
    context: SessionContext
    sessions: SessionManager
    listings: Listings
    parser: Parser
    in_flight: BytesInFlight
    metrics: Metrics

    async def invoke(self, caller: Caller, method: str, params: Mapping[str, Any]) -> Any:
        """Call a method with the caller's permissions, without JSON, and return its result.

        Raises:
            RequestError: The method refused the call. Other exceptions of `codes.REFUSALS` are also possible.
        """

    async def request(self, caller: Caller, method: str, params: Mapping[str, Any]) -> Any:
        """Call a method with JSON values, and return its result as JSON values.

        Raises:
            ReplyError: The method refused the call.
        """

    def document(self) -> Fragment:
        """Return the OpenRPC document."""

    def feature(self, kind: type[F]) -> F:
        """Return the service, operation hook or watcher of this class that a feature created for this server."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """Properties of a method, as its class declares them.

    Attributes:
        name: Name in requests.
        result: Type of the result.
        summary: Description in one sentence.
        agents: Description of the method at an agent's address, which implies the session. "" if agents can't call it.
        agents_only: For a method that only agents' addresses offer: its differences from the method of the same name at
            `/rpc`.
        repeatable: Whether sending the request twice has the same effect as sending it once, so that clients can retry.
        positional: Optional parameters that the Python client also accepts by position.
    """

    name: str
    result: Any
    summary: str
    agents: str = ""
    agents_only: str = ""
    repeatable: bool = True
    positional: tuple[str, ...] = ()


class Method(Parameters):
    """Base class of a method. An instance is a valid request.

    A method is written as `class TouchSession(Method, result=Literal[True])`. Its name is the class name in snake case,
    unless `name` is passed. Its summary is the docstring. The other keywords are the attributes of `Declaration`.

    Raises:
        TypeError: The class has no `result` or no docstring.
    """

    declared: ClassVar[Declaration]

    def __init_subclass__(cls, *, name: str = "", result: Any = None, **properties: Any) -> None:
        super().__init_subclass__()
        if result is None:
            if not hasattr(cls, "declared"):
                raise TypeError(f"The method {cls.__name__} has no result: write {cls.__name__}(Method, result=…).")
            return  # a variant of a method, such as the one without `session_id`
        if not cls.__doc__:
            raise TypeError(f"The method {cls.__name__} needs a docstring: clients see it as the method's summary.")
        name = name or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls.declared = Declaration(name, result, cls.__doc__.strip(), **properties)

    @classmethod
    @cache  # creating a pydantic model is slow
    def extend(cls, *parameters: type[Parameters], result: Any = None) -> type[Self]:
        """Return a variant of the method with additional parameters after its own, and with a narrower result type."""
        if not parameters and result in {None, cls.declared.result}:
            return cls
        members = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        metaclass: Any = type(cls)
        # Pydantic orders the fields of a model by its bases, the last base first.
        variant: type[Self] = metaclass(cls.__name__, (*reversed(parameters), cls), members)
        if result is not None:
            variant.declared = replace(cls.declared, result=result)
        return variant

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the parameters, in positional order. A parameter with `kw_only`, added later, is last."""
        fields = cls.model_fields
        return tuple(sorted(fields, key=lambda name: (name != "session_id", bool(fields[name].kw_only))))

    async def handle(self, caller: Caller, app: App) -> Any:
        """Answer the request.

        Raises:
            RequestError: The request is refused.
        """
        raise NotImplementedError

    def log_fields(self, result: Any) -> dict[str, Any]:
        """Return the fields of this request's log line. Only methods that define this function have a log line.

        Leave out options, environments and labels, because they can contain secrets and any amount of text.
        """
        raise NotImplementedError


def clients_methods(methods: Iterable[type[Method]]) -> list[type[Method]]:
    """Return the methods that `/rpc` offers."""
    return [method for method in methods if not method.declared.agents_only]


def agents_methods(methods: Iterable[type[Method]]) -> list[type[Method]]:
    """Return the methods that agents' addresses offer, without the parameter `session_id`."""
    return [
        method if method.declared.agents_only else _without_session(method)
        for method in methods
        if method.declared.agents or method.declared.agents_only
    ]


@cache
def _without_session(method: type[Method]) -> type[Method]:
    """Return a variant without the parameter `session_id`. `JsonRpc` sets it to the session of the address."""

    class AtAddress(method):  # type: ignore[valid-type,misc] # mypy doesn't support computed base classes
        session_id: ClassVar[str]
        declared = replace(method.declared, summary=method.declared.agents)

    return AtAddress
