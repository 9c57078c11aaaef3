"""Requests, and the decorator that turns declared functions into methods of all clients.

A method is declared once, as a function without a body. The decorator `requests` makes it a method of each client. Type
checkers see that `Client.create_session(...)` returns a `Session`, `AsyncClient.create_session(...)` a coroutine that
returns a `Session`, and the method of a batch a `Reply`.
"""

import inspect
import json
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from toolpack_server.client.shapes import Fits, anything, fits

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A request with a result of type `T`."""

    method: str
    params: Mapping[str, Any]  # a parameter that is None isn't sent, so the server's default applies
    repeatable: bool = True  # whether it can be sent again if the first attempt got no response
    members: "Sequence[Request[Any]]" = ()  # the requests of a batch, whose result is the list of responses
    fits: Fits = anything  # checks the form of the result

    @property
    def wait_seconds(self) -> float:
        """Extra seconds to wait for the response, because the request asks the server to wait."""
        value = self.params.get("wait_seconds")  # an invalid value is ignored here, because the server refuses it
        own = value if isinstance(value, int | float) and value > 0 else 0
        return own + sum(member.wait_seconds for member in self.members)

    def body(self) -> bytes:
        """Return the request as JSON.

        Raises:
            TypeError, ValueError: An argument has no JSON form.
        """
        members = [member._message(number) for number, member in enumerate(self.members, 1)]  # noqa: SLF001 - same class
        return (f"[{','.join(members)}]" if members else self._message(1)).encode()

    def _message(self, number: int) -> str:
        """Return the JSON of one request, with this number as its id."""
        params = {name: value for name, value in self.params.items() if value is not None}
        message = {"jsonrpc": "2.0", "id": number, "method": self.method, "params": params}
        try:
            return json.dumps(message, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.method}() has an argument without a JSON form: {error}") from None
        except RecursionError:
            raise ValueError(f"{self.method}() has an argument that is nested too deeply for JSON") from None


class Sender(Protocol):
    """The part of a synchronous client that the descriptor `method` needs."""

    def send(self, request: Request[T]) -> T: ...


class AsyncSender(Protocol):
    """The part of an asynchronous client that the descriptor `method` needs."""

    async def send(self, request: Request[T]) -> T: ...


class PendingReply(Protocol[T_co]):
    """The reply to one request of a batch."""

    def result(self) -> T_co: ...


class RequestCollector(Protocol):
    """The part of a batch that the descriptor `method` needs."""

    def add(self, request: Request[T]) -> PendingReply[T]: ...


class method(Generic[P, T]):  # noqa: N801 - a decorator
    """Descriptor for a method of the server. A client sends the request, and a batch collects it."""

    def __init__(self, name: str, declared: Callable[Concatenate[Any, P], T], *, repeatable: bool) -> None:
        self.signature = inspect.signature(declared)
        self._name = name
        self._declared = declared
        self._repeatable = repeatable
        self._functions: dict[type, Any] = {}  # by class of the client

    def request(self, *args: Any, **kwargs: Any) -> Request[T]:
        """Return the request. If the method accepts a `call_id` and the caller passes none, add a new one."""
        try:
            params = self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._declared.__name__}() {error}") from None
        del params["self"]
        if "call_id" in self.signature.parameters and params.get("call_id") is None:
            params["call_id"] = str(uuid.uuid4())
        return Request(self._name, params, self._repeatable, fits=fits(self.signature.return_annotation))

    @overload
    def __get__(self, client: Sender, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncSender, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: RequestCollector, owner: type) -> Callable[P, PendingReply[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...

    def __get__(self, client: Sender | AsyncSender | RequestCollector | None, owner: type) -> Any:
        # Each class of client has its own function, because `help` shows its name and module.
        if owner not in self._functions:
            self._functions[owner] = self._function_of(owner)
        return self._functions[owner].__get__(client, owner)

    def _function_of(self, owner: type) -> Any:
        """Return the method for one class of client. `help` shows the declared signature and docstring."""
        declared, request = self._declared, self.request

        def add(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return client.add(request(client, *args, **kwargs))

        def send(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(request(client, *args, **kwargs))

        async def send_async(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await client.send(request(client, *args, **kwargs))

        call: Any = send_async if inspect.iscoroutinefunction(getattr(owner, "send", None)) else send
        if hasattr(owner, "add"):
            call = add
        call.__name__, call.__doc__, call.__module__ = declared.__name__, declared.__doc__, owner.__module__
        call.__qualname__ = f"{owner.__qualname__}.{declared.__name__}"
        call.__signature__ = self.signature
        return call


def requests(name: str, *, repeatable: bool = True) -> Callable[[Callable[Concatenate[Any, P], T]], method[P, T]]:
    """Decorator: turn a function that only declares its parameters and its result into a method of all clients."""

    def decorate(declared: Callable[Concatenate[Any, P], T]) -> method[P, T]:
        return method(name, declared, repeatable=repeatable)

    return decorate
