"""Client of an untrusted A2A agent.

The agent's replies are limited in time and size, and each failure of the agent is an `AgentError`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types.a2a_pb2 import (
    Artifact,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import A2AError

MAX_REPLY_BYTES = 16 * 2**20  # max bytes that an agent can send for one task, and for its card
MAX_SHOWN = 300  # max characters of an agent's reply in an error message
CONNECT_SECONDS = 10.0
POLL_SECONDS = 1.0
CANCEL_SECONDS = 5.0

_RUNNING = {TaskState.TASK_STATE_UNSPECIFIED, TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING}

Failure = Literal["unreachable", "disconnected", "timeout", "flood", "invalid", "error"]


class AgentError(Exception):
    """An agent's failure. The message is a sentence.

    Attributes:
        failure: `unreachable` if the agent never received the task. Any other value means that it failed later.
    """

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class _FloodError(Exception):
    """An agent sent too many bytes, or compressed data."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """The reply that ends an agent's task.

    Attributes:
        state: The state of the agent's A2A task, such as `completed`. A plain message counts as `completed`.
        text: The text of the artifacts or, if they contain no text, of the last message.
    """

    state: str
    text: str


@dataclass(slots=True)
class _ReceivedBytes:
    """Number of bytes that an agent has sent for one task, over all connections."""

    total: int = 0


_received: ContextVar[_ReceivedBytes] = ContextVar("_received")


class _CountedStream(httpx.AsyncByteStream):
    """Body of a response that counts its bytes. It raises `_FloodError` after `MAX_REPLY_BYTES` for one task."""

    def __init__(self, stream: httpx.AsyncByteStream, received: _ReceivedBytes) -> None:
        self._stream = stream
        self._received = received

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._received.total += len(chunk)
            if self._received.total > MAX_REPLY_BYTES:
                raise _FloodError
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BoundedTransport(httpx.AsyncHTTPTransport):
    """Transport that counts the bytes of all responses to a task, in the task's `_ReceivedBytes`.

    It raises `_FloodError` for compressed replies, because a few of their bytes can expand to any size.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the response with a body that counts its bytes.

        Raises:
            _FloodError: The response is compressed.
        """
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise _FloodError
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101 - an async transport has no other
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_CountedStream(stream, _received.get()),
            extensions=response.extensions,
        )


@dataclass(slots=True)
class _Progress:
    """State of an agent's A2A task, and the text that the agent has sent so far."""

    task_id: str = ""
    state: "TaskState | None" = None  # None: no task yet
    artifacts: dict[str, list[str]] = field(default_factory=dict)
    message: str = ""

    @property
    def is_over(self) -> bool:
        return self.state is not None and self.state not in _RUNNING

    def add(self, event: StreamResponse) -> None:
        """Add an event from the agent's stream."""
        if event.HasField("message"):
            self.state = TaskState.TASK_STATE_COMPLETED
            self.message = _text(event.message)
        elif event.HasField("task"):
            self.add_task(event.task)
        elif event.HasField("status_update"):
            self.task_id = self.task_id or event.status_update.task_id
            self._add_status(event.status_update.status)
        elif event.HasField("artifact_update"):
            update = event.artifact_update
            self.task_id = self.task_id or update.task_id
            self._add_artifact(update.artifact, append=update.append)

    def add_task(self, task: Task) -> None:
        self.task_id = task.id
        for artifact in task.artifacts:
            self._add_artifact(artifact, append=False)
        self._add_status(task.status)

    def _add_status(self, status: TaskStatus) -> None:
        self.state = status.state
        if status.HasField("message") and (text := _text(status.message)):
            self.message = text

    def _add_artifact(self, artifact: Artifact, *, append: bool) -> None:
        texts = self.artifacts.setdefault(artifact.artifact_id, [])
        if not append:
            texts.clear()
        texts.append(_text(artifact))

    def reply(self) -> AgentReply:
        """Return the reply, after the task has ended."""
        state = TaskState.Name(self.state or TaskState.TASK_STATE_UNSPECIFIED)
        text = "\n".join("".join(texts) for texts in self.artifacts.values() if any(texts))
        return AgentReply(state.removeprefix("TASK_STATE_").lower().replace("_", "-"), text or self.message)


def _text(message: Message | Artifact) -> str:
    return "\n".join(part.text for part in message.parts if part.HasField("text"))


class A2AAgent:
    """An agent at a URL. Use it as `async with open_agent(url) as agent`."""

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self.url = url

    async def ask(self, text: str, metadata: Mapping[str, Any], seconds: float) -> AgentReply:
        """Send a message, and return the reply that ends the agent's task.

        Args:
            metadata: Metadata of the message, for programs.
            seconds: Time limit, after which the agent's task is cancelled.

        Raises:
            AgentError: The agent failed.
        """
        _received.set(_ReceivedBytes())
        progress = _Progress()
        message = Message(
            role=Role.ROLE_USER,
            message_id=uuid4().hex,
            parts=[Part(text=text, media_type="text/plain")],
            metadata=metadata,
        )
        try:
            async with asyncio.timeout(seconds):
                with _agent_errors(self.url):
                    await self._play(SendMessageRequest(message=message), progress)
        except TimeoutError:
            await self._cancel(progress.task_id)
            raise AgentError("timeout", f"The agent didn't finish within {seconds:g} s.") from None
        except AgentError as error:
            if error.failure == "flood":
                await self._cancel(progress.task_id)
            raise
        return progress.reply()

    async def _play(self, request: SendMessageRequest, progress: _Progress) -> None:
        """Send a message, and follow the agent's task until it ends. If the stream breaks, poll the task."""
        try:
            async for event in self._client.send_message(request):
                progress.add(event)
                if progress.is_over:
                    return
        except A2AClientError:
            if not progress.task_id:  # if there is a task, only the stream broke, and the agent might still be working
                raise
        while not progress.is_over:
            if not progress.task_id:
                raise AgentError("invalid", "The agent replied neither with a message nor with a task.")
            await asyncio.sleep(POLL_SECONDS)
            progress.add_task(await self._client.get_task(GetTaskRequest(id=progress.task_id)))

    async def _cancel(self, task_id: str) -> None:
        """Cancel the agent's task, so that the agent makes no more calls. Ignore a failure of the cancellation."""
        with suppress(Exception):
            async with asyncio.timeout(CANCEL_SECONDS):
                if task_id:
                    await self._client.cancel_task(CancelTaskRequest(id=task_id))


@asynccontextmanager
async def open_agent(url: str) -> AsyncIterator[A2AAgent]:
    """Read the card of the agent at a URL, and yield the agent.

    Raises:
        AgentError: The agent can't be reached, or its card isn't valid.
    """
    _received.set(_ReceivedBytes())
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    async with httpx.AsyncClient(transport=_BoundedTransport(trust_env=False), timeout=timeout) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=["JSONRPC", "HTTP+JSON"])
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                card = await A2ACardResolver(http, url).get_agent_card()
            client = ClientFactory(config).create(card)
        except TimeoutError:
            raise AgentError(
                "unreachable", f"The agent at {url} didn't send its card within {CONNECT_SECONDS:g} s."
            ) from None
        except _FloodError:
            raise AgentError("unreachable", f"The card of the agent at {url} is too large, or compressed.") from None
        except Exception as error:  # noqa: BLE001 - the SDK can raise any exception for an untrusted card
            raise AgentError("unreachable", f"There is no A2A agent at {url}: {_shown(error)}") from None
        yield A2AAgent(client, url)


@contextmanager
def _agent_errors(url: str) -> Iterator[None]:
    """Raise each failure of an agent as an `AgentError`."""
    try:
        yield
    except (AgentError, TimeoutError):
        raise
    except _FloodError:
        limit = MAX_REPLY_BYTES // 2**20
        raise AgentError("flood", f"The agent sent more than {limit} MiB, or compressed data.") from None
    except Exception as error:  # noqa: BLE001 - the SDK can raise any exception for untrusted replies
        cause = error.__cause__
        if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
            raise AgentError("unreachable", f"The agent at {url} can't be reached: {_shown(cause)}") from None
        if isinstance(cause, httpx.RequestError):
            raise AgentError("disconnected", f"The connection to the agent broke: {_shown(cause)}") from None
        if isinstance(error, A2AError):
            raise AgentError("error", f"The agent answered with an error: {_shown(error)}") from None
        raise AgentError("invalid", f"The agent's reply isn't valid A2A: {_shown(error)}") from None


def _shown(error: BaseException) -> str:
    """Return an exception in one line of limited length."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
