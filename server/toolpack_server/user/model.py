"""Models that play a participant: an OpenAI-compatible endpoint, or a script with fixed steps.

Any reply of an endpoint becomes an `Answer` or a `ModelError` with a reason. A mistake in the command itself, such as a
wrong API key, ends the program but fails no session. The key is never shown.
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

_FIRST_DELAY_SECONDS = 0.5
_MAX_DELAY_SECONDS = 60.0  # max delay, even if the endpoint requests a longer one
_USER_MISTAKES = (401, 403, 404)  # HTTP status of a wrong key or model name
_RETRIED = (408, 409, 429)  # HTTP status of errors that can be temporary
_SERVER_ERROR = 500
_RATE_LIMIT = 429
_MAX_SHOWN = 300  # max characters of an endpoint's error message
_MAX_ANSWER_BYTES = 2**22


class ModelCall(NamedTuple):
    """A call that a model wants to make."""

    function: str
    kwargs: Mapping[str, Any]


class Answer(NamedTuple):
    """A model's answer: text or calls, or the problem that makes the answer unusable.

    Attributes:
        metadata: The model's name and the numbers of tokens, for the record of the turn. Empty for a script.
    """

    text: str = ""
    calls: Sequence[ModelCall] = ()
    problem: str | None = None
    metadata: Mapping[str, Any] = {}


class ModelError(ClientError):
    """Raised if a model can't continue in a session.

    Attributes:
        reason: A word for the reason, which `fail_participant` records.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnreadAnswerError(Exception):
    """Raised if an endpoint's answer is rejected before it was read completely."""


async def limit_answer(response: Any) -> None:
    """Limit the number of bytes that are read from an httpx response, so that an endpoint can't fill the memory.

    This is httpx's hook for responses, which runs before the body is read. It replaces the response's stream by a
    stream that raises `UnreadAnswerError` after too many bytes.

    Raises:
        UnreadAnswerError: The response is compressed, so it could expand to any size.
    """
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnreadAnswerError("The answer is compressed, although the request didn't accept that.")
    stream = response.stream

    async def pieces(_self: Any) -> AsyncIterator[bytes]:
        """Yield the pieces of the response's body, until they are too large together."""
        size = 0
        async for piece in stream:
            size += len(piece)
            if size > _MAX_ANSWER_BYTES:
                raise UnreadAnswerError(f"The answer has more than {_MAX_ANSWER_BYTES} bytes.")
            yield piece

    async def close(_self: Any) -> None:
        await stream.aclose()

    # A subclass of the stream's own class, because httpx checks the class, and openai might use a copy of httpx.
    limited = type("Limited", (type(stream),), {"__init__": object.__init__, "__aiter__": pieces, "aclose": close})
    response.stream = limited()


class Model(Protocol):
    """Decides what a participant does next. The command creates a `ChatModel` or a `Script`; the player calls it."""

    async def answer(self, messages: Sequence[Any], tools: Sequence[Any], turn: int) -> Answer:
        """Return the next answer in a conversation. `turn` counts the participant's messages and calls so far.

        Raises:
            ModelError: The model can't continue in this session.
            ClickException: The model can't play any session: the command's options are wrong.
        """

    async def close(self) -> None:
        """Close connections."""


class Script:
    """A model that takes the steps of a list in order, regardless of the messages that it gets."""

    def __init__(self, file: Path) -> None:
        try:
            steps = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise click.ClickException(f"The script {file} can't be read: {error}.") from None
        if not isinstance(steps, list):
            raise click.ClickException(f"The script {file} must be a JSON list of steps.")
        self._steps = [self._step(file, number, step) for number, step in enumerate(steps)]

    @staticmethod
    def _step(file: Path, number: int, step: Any) -> Answer:
        """Convert a step of the script to an answer: a string is a message, an object is a call."""
        match step:
            case str():
                return Answer(text=step)
            case {"function": str(function)} if step.keys() <= {"function", "kwargs"}:
                kwargs = step.get("kwargs", {})
                if isinstance(kwargs, dict):
                    return Answer(calls=[ModelCall(function, kwargs)])
        raise click.ClickException(
            f"Step {number} of the script {file} must be a text, or an object with `function` and `kwargs`."
        )

    async def answer(self, messages: Sequence[Any], tools: Sequence[Any], turn: int) -> Answer:
        del messages, tools
        if turn >= len(self._steps):
            raise ModelError("script", f"The script has no step {turn}.")
        return self._steps[turn]

    async def close(self) -> None:
        """Do nothing: a script has no connections."""


class ChatModel:
    """A model behind a chat completions endpoint.

    Args:
        model: The model's name.
        base_url: The endpoint's URL. None: the value of the variable OPENAI_BASE_URL, or OpenAI's endpoint.
        timeout_seconds: Time limit of an answer, in seconds.
        retries: Maximum number of retries of a request.
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
                "Set OPENAI_API_KEY to the endpoint's key. If the endpoint needs no key, set it to any text."
            ) from None
        except Exception as error:  # noqa: BLE001 - the URL's parser can raise any exception
            raise click.ClickException(f"--base-url isn't a valid URL: {error}.") from None

    async def answer(self, messages: Sequence[Any], tools: Sequence[Any], turn: int) -> Answer:
        """Request the next answer from the endpoint; see `Model`. After an error that can pass, retry.

        The delays grow and are random, so that the sessions of a run don't all retry at the same moment.
        """
        del turn
        create: Any = self._client.chat.completions.with_raw_response.create
        options = {"tools": [*tools]} if tools else {}  # endpoints refuse an empty list
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(self._seconds):  # the client limits each read, not the whole answer
                    raw = await create(model=self._model, messages=[*messages], **options)
                return self._read(raw.text)
            except UnreadAnswerError as error:
                raise ModelError("refused", str(error)) from None
            except (TimeoutError, self._openai.OpenAIError) as error:
                failure, retry_after = self._failure(error)
                if attempt >= self._retries or failure.reason == "refused":
                    raise failure from None
            longest = backoff(attempt, _FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS)
            await asyncio.sleep(max(retry_after, random.uniform(longest / 2, longest)))  # noqa: S311 - no secret
            attempt += 1

    async def close(self) -> None:
        await self._client.close()

    def _failure(self, error: Exception) -> tuple[ModelError, float]:
        """Return the failure that an error causes, and the delay in seconds that the endpoint requests.

        Only a failure with the reason `refused` mustn't be retried.

        Raises:
            ClickException: The API key or the model's name is wrong, so the whole command must end.
        """
        if isinstance(error, TimeoutError | self._openai.APITimeoutError):
            return ModelError("timeout", f"The model didn't answer within {self._seconds:g} s."), 0
        status = getattr(error, "status_code", None)
        if status is None:
            cause = error.__cause__ or error
            if isinstance(cause, UnreadAnswerError):  # older releases of openai wrap every exception
                return ModelError("refused", str(cause)), 0
            return ModelError("unreachable", self._shown(f"No answer: {type(cause).__name__}: {cause}")), 0
        text = self._shown(f"HTTP {status}: {error}")
        if status in _USER_MISTAKES:
            raise click.ClickException(f"The endpoint refused the API key or the model {self._model!r}. {text}")
        if status not in _RETRIED and status < _SERVER_ERROR:
            return ModelError("refused", text), 0
        response = getattr(error, "response", None)
        delay = _seconds(response.headers.get("retry-after") if response is not None else None)
        return ModelError("rate_limit" if status == _RATE_LIMIT else "unreachable", text), delay

    def _shown(self, text: str) -> str:
        """Return an error message without the API key, in one line of limited length."""
        return " ".join(text.replace(self._client.api_key, "***").split())[:_MAX_SHOWN]

    def _read(self, text: str) -> Answer:
        """Return the answer in a chat completion. If it can't be used, the answer has a `problem`."""
        metadata: dict[str, Any] = {"model_name": self._model}
        try:
            reply = json.loads(text)
            choice = reply["choices"][0]
            message = choice["message"]
            content, calls = message.get("content") or "", message.get("tool_calls") or []
            usage = reply.get("usage") or {}
            metadata |= {name: usage[name] for name in ("prompt_tokens", "completion_tokens") if _is_count(usage, name)}
            texts = [(call["function"]["name"], call["function"].get("arguments") or "{}") for call in calls]
            if not isinstance(content, str) or not all(isinstance(part, str) for pair in texts for part in pair):
                raise TypeError
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return Answer(problem="It wasn't a chat completion.", metadata=metadata)
        if choice.get("finish_reason") == "length":
            return Answer(problem="It was too long and was cut off.", metadata=metadata)
        model_calls = []
        for name, arguments in texts:
            kwargs = _object(arguments)
            if kwargs is None:
                problem = f"The arguments of {name[:64]!r} weren't a JSON object."
                return Answer(problem=problem, metadata=metadata)
            model_calls.append(ModelCall(name, kwargs))
        if not model_calls and not content.strip():
            return Answer(problem="It was empty.", metadata=metadata)
        return Answer(content.strip(), model_calls, metadata=metadata)


def _is_count(usage: Mapping[str, Any], name: str) -> bool:
    return type(usage.get(name)) is int and 0 <= usage[name] < 2**40


def _object(text: str) -> dict[str, Any] | None:
    """Return a JSON object, or None if the text isn't one."""
    try:
        value = json.loads(text)
        json.dumps(value)  # `dumps` allows less nesting than `loads`
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _seconds(header: str | None) -> float:
    """Return the seconds in a `Retry-After` header, or 0 if it isn't a number, for example a date."""
    try:
        return min(max(0.0, float(header or 0)), _MAX_DELAY_SECONDS)  # with the arguments in this order, NaN becomes 0
    except ValueError:
        return 0.0
