"""Who decides what a participant does next: a model behind an OpenAI-compatible endpoint, or a script.

Whatever an endpoint answers becomes an `Answer`, or a `ModelError` with the name of the reason. What is wrong
with the command itself, such as its key, ends the program and no session. The key is shown nowhere.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click

from toolpack_server.base.errors import ClientError
from toolpack_server.client.exchange import backoff

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 60.0  # also of those that an endpoint asks for
_MISTAKES = (401, 403, 404)  # of whoever has started the program: the key, or the model's name
_AGAIN = (408, 409, 429)
_SERVERS_FAULT = 500
_RATE_LIMIT = 429
_MAX_SHOWN = 300  # characters of what an endpoint says
_MAX_ANSWER_BYTES = 2**22


class ModelCall(NamedTuple):
    """A call that a model wants to make."""

    function: str
    kwargs: Mapping[str, Any]


class Answer(NamedTuple):
    """What a model has answered: a text or calls, or the problem for which nothing can be made of it.

    Attributes:
        metadata: What it has used; empty for a script.
    """

    text: str = ""
    calls: Sequence[ModelCall] = ()
    problem: str | None = None
    metadata: Mapping[str, Any] = {}


class ModelError(ClientError):
    """A model can't go on in a session.

    Attributes:
        reason: The name of the reason.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnreadAnswerError(Exception):
    """An endpoint's answer isn't read any further."""


async def limit_answer(response: Any) -> None:
    """Let a response of httpx be read up to a limit only; one that is compressed may become any size.

    Raises:
        UnreadAnswerError: It is compressed, although nobody asked for that.
    """
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnreadAnswerError("The answer is compressed, which it wasn't asked to be.")
    stream = response.stream

    async def pieces(_self: Any) -> AsyncIterator[bytes]:
        size = 0
        async for piece in stream:
            size += len(piece)
            if size > _MAX_ANSWER_BYTES:
                raise UnreadAnswerError(f"The answer has more than {_MAX_ANSWER_BYTES} bytes.")
            yield piece

    async def close(_self: Any) -> None:
        await stream.aclose()

    # A stream of the same kind, as releases of openai bring an httpx of their own, which looks at the kind.
    limited = type("Limited", (type(stream),), {"__init__": object.__init__, "__aiter__": pieces, "aclose": close})
    response.stream = limited()


class Model(Protocol):
    """Says what a participant does next."""

    async def answer(self, messages: Sequence[Any], tools: Sequence[Any], turn: int) -> Answer:
        """Answer a conversation; `turn` counts what the participant has said and called.

        Raises:
            ModelError: It can't.
            ClickException: No session could be played: the program must be started in another way.
        """

    async def close(self) -> None:
        """Close connections."""


class Script:
    """A fixed user: does one step of a list after the other, whatever it hears."""

    def __init__(self, file: Path) -> None:
        try:
            steps = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise click.ClickException(f"The script {file} can't be read: {error}.") from None
        if not isinstance(steps, list):
            raise click.ClickException(f"The script {file} is no list of steps.")
        self._steps = [self._step(file, number, step) for number, step in enumerate(steps)]

    @staticmethod
    def _step(file: Path, number: int, step: Any) -> Answer:
        match step:
            case str():
                return Answer(text=step)
            case {"function": str(function)} if step.keys() <= {"function", "kwargs"}:
                kwargs = step.get("kwargs", {})
                if isinstance(kwargs, dict):
                    return Answer(calls=[ModelCall(function, kwargs)])
        raise click.ClickException(
            f"Step {number} of the script {file} is neither a text nor an object of function and kwargs."
        )

    async def answer(self, messages: Sequence[Any], tools: Sequence[Any], turn: int) -> Answer:
        del messages, tools
        if turn >= len(self._steps):
            raise ModelError("script", f"The script has no step {turn}.")
        return self._steps[turn]

    async def close(self) -> None:
        """There is nothing to be closed."""


class ChatModel:
    """A model that answers chat completions.

    Args:
        base_url: The endpoint's; None: OpenAI's, or that of the variable OPENAI_BASE_URL.
        timeout_seconds: How long an answer may take.
        retries: How often a request is sent again.
    """

    def __init__(self, model: str, base_url: str | None, timeout_seconds: float, retries: int) -> None:
        try:
            import openai  # noqa: PLC0415 - an extra, which a script doesn't need
        except ImportError:
            raise click.ClickException(
                "A model needs the openai package: pip install 'toolpack-server[user]'."
            ) from None
        self._openai = openai
        self._model = model
        self._seconds = timeout_seconds
        self._retries = retries
        try:
            http = openai.DefaultAsyncHttpxClient(follow_redirects=False, event_hooks={"response": [limit_answer]})
            self._client = openai.AsyncOpenAI(
                base_url=base_url,
                timeout=timeout_seconds,
                max_retries=0,
                default_headers={"Accept-Encoding": "identity"},
                http_client=http,
            )
        except openai.OpenAIError:
            raise click.ClickException(
                "Set OPENAI_API_KEY to the endpoint's key; for one that asks for none, to any text."
            ) from None
        except Exception as error:  # noqa: BLE001 - of whatever parses the URL
            raise click.ClickException(f"--base-url can't be read: {error}.") from None

    async def answer(self, messages: Sequence[Any], tools: Sequence[Any], turn: int) -> Answer:
        del turn
        create: Any = self._client.chat.completions.with_raw_response.create
        offered = {"tools": [*tools]} if tools else {}  # endpoints refuse an empty list
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(self._seconds):  # all of it: what trickles meets no other limit
                    raw = await create(model=self._model, messages=[*messages], **offered)
                return self._read(raw.text)
            except UnreadAnswerError as error:
                raise ModelError("refused", str(error)) from None
            except (TimeoutError, self._openai.OpenAIError) as error:
                failed, asked = self._failure(error)
                if attempt >= self._retries or failed.reason == "refused":
                    raise failed from None
            longest = backoff(attempt, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(max(asked, random.uniform(longest / 2, longest)))  # noqa: S311 - no secret
            attempt += 1

    async def close(self) -> None:
        await self._client.close()

    def _failure(self, error: Exception) -> tuple[ModelError, float]:
        """Get what an error means, and for how many seconds the endpoint asks to be left alone."""
        if isinstance(error, TimeoutError | self._openai.APITimeoutError):
            return ModelError("timeout", f"The model hasn't answered within {self._seconds:g} s."), 0
        status = getattr(error, "status_code", None)
        if status is None:
            cause = error.__cause__ or error
            if isinstance(cause, UnreadAnswerError):  # older releases of openai wrap whatever has failed
                return ModelError("refused", str(cause)), 0
            return ModelError("unreachable", self._shown(f"No answer: {type(cause).__name__}: {cause}")), 0
        text = self._shown(f"HTTP {status}: {error}")
        if status in _MISTAKES:
            raise click.ClickException(f"The endpoint refuses the key or the model {self._model!r}. {text}")
        if status not in _AGAIN and status < _SERVERS_FAULT:
            return ModelError("refused", text), 0
        asked = getattr(error, "response", None)
        pause = _seconds(asked.headers.get("retry-after") if asked is not None else None)
        return ModelError("rate_limit" if status == _RATE_LIMIT else "unreachable", text), pause

    def _shown(self, text: str) -> str:
        return " ".join(text.replace(self._client.api_key, "***").split())[:_MAX_SHOWN]

    def _read(self, text: str) -> Answer:
        metadata: dict[str, Any] = {"model_name": self._model}
        try:
            reply = json.loads(text)
            choice = reply["choices"][0]
            message = choice["message"]
            content, calls = message.get("content") or "", message.get("tool_calls") or []
            usage = reply.get("usage") or {}
            metadata |= {name: usage[name] for name in ("prompt_tokens", "completion_tokens") if _is_count(usage, name)}
            made = [(call["function"]["name"], call["function"].get("arguments") or "{}") for call in calls]
            if not isinstance(content, str) or not all(isinstance(part, str) for call in made for part in call):
                raise TypeError
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return Answer(problem="It was no chat completion.", metadata=metadata)
        if choice.get("finish_reason") == "length":
            return Answer(problem="It was cut off, as it was too long.", metadata=metadata)
        found = []
        for name, arguments in made:
            kwargs = _object(arguments)
            if kwargs is None:
                problem = f"The arguments of {name[:64]!r} were no JSON object."
                return Answer(problem=problem, metadata=metadata)
            found.append(ModelCall(name, kwargs))
        if not found and not content.strip():
            return Answer(problem="It was empty.", metadata=metadata)
        return Answer(content.strip(), found, metadata=metadata)


def _is_count(usage: Mapping[str, Any], name: str) -> bool:
    return type(usage.get(name)) is int and 0 <= usage[name] < 2**40


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
        json.dumps(found)  # which goes less deep
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _seconds(header: str | None) -> float:
    """Get the seconds of a `Retry-After`; 0 if it is a date, or anything else."""
    try:
        return min(max(0.0, float(header or 0)), _LONGEST_PAUSE_SECONDS)  # in this order: 0 for NaN, too
    except ValueError:
        return 0.0
