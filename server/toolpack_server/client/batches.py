"""Batches: several requests that are sent together, at the end of a `with` block.

A batch has the methods of its client, and each returns a `Reply`, which has the result once the block ends.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Self, TypeVar

from toolpack_server.base.errors import ClientError, NoReplyError
from toolpack_server.client.exchange import checked, reply_error
from toolpack_server.client.methods import AgentMethods, ClientMethods
from toolpack_server.client.requests import Request

T = TypeVar("T")

BATCH_SIZE = 100
"""How many requests are sent at once; more are sent one after the other. The server allows as many."""

Responses = list[Any]


class Reply(Generic[T]):
    """The answer to one request of a batch."""

    def __init__(self, request: Request[T]) -> None:
        self._request = request
        self._response: dict[str, Any] = {}
        self._error: ClientError | None = NoReplyError(f"{request.method} is sent when the `with` block ends.")

    def result(self) -> T:
        """Get the result.

        Raises:
            ReplyError: The server answered with an error.
            NoReplyError: It didn't answer, or the batch isn't sent yet.
        """
        if self._error is not None:
            raise self._error
        result: T = self._response["result"]
        return result

    def receive(self, response: Any) -> None:
        """Note the response; None if there is none, though others of the batch got theirs."""
        found = checked(response, self._request)
        if found is None:
            self._error = NoReplyError(f"{self._request.method} got no answer, though others of its batch did.")
        else:
            self._response = found
            self._error = reply_error(found["error"]) if "error" in found else None

    def fail(self, error: ClientError) -> None:
        self._error = error


class _Part:
    def __init__(self, collected: Sequence[tuple[Request[Any], Reply[Any]]]) -> None:
        members = [request for request, _ in collected]
        repeatable = all(request.repeatable for request in members)
        self.request: Request[Responses] = Request("A batch", {}, repeatable, members)
        self.replies = [reply for _, reply in collected]

    def receive(self, responses: Responses) -> None:
        """Pass the responses, which may come in any order, on to the replies."""
        answered = [each for each in responses if isinstance(each, dict) and isinstance(each.get("id"), int)]
        by_id = {response["id"]: response for response in answered}
        for number, reply in enumerate(self.replies, 1):
            reply.receive(by_id.get(number))


class Collection:
    def __init__(self) -> None:
        self._collected: list[tuple[Request[Any], Reply[Any]]] = []

    def add(self, request: Request[T]) -> Reply[T]:
        """Add a request, which is sent when the `with` block ends."""
        reply = Reply(request)
        self._collected.append((request, reply))
        return reply

    def _parts(self) -> list[_Part]:
        collected, self._collected = self._collected, []
        return [_Part(collected[start : start + BATCH_SIZE]) for start in range(0, len(collected), BATCH_SIZE)]


def _fail(parts: list[_Part], error: ClientError) -> None:
    for part in parts:
        for reply in part.replies:
            reply.fail(error)


class Sending(Collection):
    """Sends what it has collected at the end of a `with` block that raises nothing."""

    def __init__(self, send: Callable[[Request[Responses]], Responses]) -> None:
        super().__init__()
        self._send = send

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        parts = self._parts() if kind is None else []
        for number, part in enumerate(parts):
            try:
                part.receive(self._send(part.request))
            except ClientError as error:
                _fail(parts[number:], error)
                raise


class AsyncSending(Collection):
    def __init__(self, send: Callable[[Request[Responses]], Coroutine[Any, Any, Responses]]) -> None:
        super().__init__()
        self._send = send

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        parts = self._parts() if kind is None else []
        for number, part in enumerate(parts):
            try:
                part.receive(await self._send(part.request))
            except ClientError as error:
                _fail(parts[number:], error)
                raise


class Batch(Sending, ClientMethods):
    """A batch of `Client`."""


class AsyncBatch(AsyncSending, ClientMethods):
    """A batch of `AsyncClient`."""


class AgentBatch(Sending, AgentMethods):
    """A batch of `AgentClient`."""


class AsyncAgentBatch(AsyncSending, AgentMethods):
    """A batch of `AsyncAgentClient`."""
