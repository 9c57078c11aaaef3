"""Batches: requests that are collected in a `with` block and sent together at its end.

A batch has the methods of its client. Each method returns a `Reply`, from which the caller reads the result after the
block.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Self, TypeVar

from toolpack_server.base.errors import ClientError, NoReplyError
from toolpack_server.client.exchange import check_response, reply_error
from toolpack_server.client.methods import AgentMethods, ClientMethods
from toolpack_server.client.requests import Request

T = TypeVar("T")

BATCH_SIZE = 100
"""Maximum number of requests in one JSON-RPC batch on a server. More requests are sent as several JSON-RPC batches."""

Responses = list[Any]


class Reply(Generic[T]):
    """The reply to one request of a batch. The caller gets it at once, and reads its result after the block."""

    def __init__(self, request: Request[T]) -> None:
        self._request = request
        self._response: dict[str, Any] = {}
        self._error: ClientError | None = NoReplyError(f"{request.method} is sent when the `with` block ends.")

    def result(self) -> T:
        """Return the result.

        Raises:
            ReplyError: The server answered with an error.
            NoReplyError: The server didn't respond, or the batch hasn't been sent yet.
        """
        if self._error is not None:
            raise self._error
        result: T = self._response["result"]
        return result

    def receive(self, response: Any) -> None:
        """Store the response. None means that only other requests of the batch got a response."""
        checked = check_response(response, self._request)
        if checked is None:
            self._error = NoReplyError(f"{self._request.method} got no answer, but other requests of its batch did.")
        else:
            self._response = checked
            self._error = reply_error(checked["error"]) if "error" in checked else None

    def fail(self, error: ClientError) -> None:
        """Store the error that `result` raises."""
        self._error = error


class _Part:
    """One JSON-RPC batch: at most `BATCH_SIZE` of the collected requests, and their replies."""

    def __init__(self, collected: Sequence[tuple[Request[Any], Reply[Any]]]) -> None:
        members = [request for request, _ in collected]
        repeatable = all(request.repeatable for request in members)
        self.request: Request[Responses] = Request("A batch", {}, repeatable, members)
        self.replies = [reply for _, reply in collected]

    def receive(self, responses: Responses) -> None:
        """Store each response in its reply. The id of a response is the number of its request, from 1."""
        answered = [each for each in responses if isinstance(each, dict) and isinstance(each.get("id"), int)]
        by_id = {response["id"]: response for response in answered}
        for number, reply in enumerate(self.replies, 1):
            reply.receive(by_id.get(number))


class Collection:
    """Requests that wait to be sent together."""

    def __init__(self) -> None:
        self._collected: list[tuple[Request[Any], Reply[Any]]] = []

    def add(self, request: Request[T]) -> Reply[T]:
        """Add a request. It is sent when the `with` block ends."""
        reply = Reply(request)
        self._collected.append((request, reply))
        return reply

    def _parts(self) -> list[_Part]:
        """Remove the collected requests, and return them as JSON-RPC batches."""
        collected, self._collected = self._collected, []
        return [_Part(collected[start : start + BATCH_SIZE]) for start in range(0, len(collected), BATCH_SIZE)]


def _fail(parts: list[_Part], error: ClientError) -> None:
    """Store an error in all replies of these batches, because they won't be sent any more."""
    for part in parts:
        for reply in part.replies:
            reply.fail(error)


class BatchCollection(Collection):
    """Collection that is sent at the end of a `with` block. If the block raises, nothing is sent."""

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


class AsyncBatchCollection(Collection):
    """Collection that is sent at the end of an `async with` block. If the block raises, nothing is sent."""

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


class Batch(BatchCollection, ClientMethods):
    """A batch of `Client`."""


class AsyncBatch(AsyncBatchCollection, ClientMethods):
    """A batch of `AsyncClient`."""


class AgentBatch(BatchCollection, AgentMethods):
    """A batch of `AgentClient`."""


class AsyncAgentBatch(AsyncBatchCollection, AgentMethods):
    """A batch of `AsyncAgentClient`."""
