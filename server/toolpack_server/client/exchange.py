"""Exchange of one request and its response, without I/O: when to send again, and how to read the response.

All clients share this module, because they differ only in how they post and wait. Each response becomes a result of the
promised form or a `ClientError`. The time and the size of a response are limited.

A request is retried if the server certainly didn't handle it: the server couldn't be reached, or answered 503 or -32006
(overloaded). If no response came, only idempotent requests are retried: reads, and `run_function`, which always has a
`call_id`. A batch is retried as a whole or not at all, so its calls run in order.
"""

import json
import logging
import random
import time
from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

import httpx

from toolpack_server.base.errors import NoReplyError, ReplyError
from toolpack_server.client.requests import Request

T = TypeVar("T")

RETRIES = 13
"""Default number of retries. Their delays add up to 31 to 42 seconds, longer than most restarts of a server."""
MAX_REPLY_BYTES = 2**28  # four times the largest response of a server with default settings

_FIRST_DELAY_SECONDS = 0.1
_MAX_DOUBLINGS = 10  # max times that a delay doubles: enough to reach the longest delay
_MAX_DELAY_SECONDS = 5.0  # max delay, even if the server asks for a longer one
_QUIET_ATTEMPTS = 3  # failed attempts before the outage is logged
_MAX_TIMEOUTS = 3  # after this many timeouts a request isn't retried

_OVERLOADED = -32006
_UNAVAILABLE = 503
_AWAY_STATUS = (502, 503, 504)  # the server doesn't answer; a proxy sends 502 and 504
_NO_JSON_RPC = -32000
_NO_JSON, _NO_REQUEST, _WRONG, _TOO_LARGE = -32700, -32600, -32602, -32007
_BODY_TOO_LARGE = 413
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_PERMANENT = (httpx.LocalProtocolError, httpx.DecodingError)  # a retry would fail in the same way

log = logging.getLogger("toolpack_server.client")


def backoff(attempt: int, first: float, longest: float) -> float:
    """Return the delay before the next attempt in seconds, without jitter. It doubles from `first` up to `longest`."""
    return min(first * 2.0 ** min(attempt, _MAX_DOUBLINGS), longest)  # 2.0 ** 1024 overflows


def is_unusable(error: Exception) -> bool:
    """Return whether the server refused a request because of its content, such as the arguments that a model wrote.

    Such content isn't JSON (for example, it contains a lone surrogate), is nested too deeply, is invalid, or is too
    large. A retry wouldn't help, but the server works, so the caller can continue with other requests.
    """
    return isinstance(error, ReplyError) and (
        error.code in {_NO_JSON, _NO_REQUEST, _WRONG, _TOO_LARGE} or error.data.get("status") == _BODY_TOO_LARGE
    )


class HttpAnswer(NamedTuple):
    """The status and the body of an HTTP response."""

    status: int
    content: bytes


class ReplyBody:
    """The body of a response while it arrives.

    Args:
        response: The response; only its headers were read.
        seconds: Time limit for the whole body.
    """

    def __init__(self, response: httpx.Response, seconds: float) -> None:
        self._response, self._ends = response, time.monotonic() + seconds
        self._chunks: list[bytes] = []
        self._bytes = 0
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            self._refuse("it is compressed, although the client didn't accept that")

    def add(self, chunk: bytes) -> None:
        """Add a chunk of the body.

        Raises:
            httpx.DecodingError: The body is too long.
            httpx.ReadTimeout: The time limit has passed.
        """
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        if self._bytes > MAX_REPLY_BYTES:
            self._refuse(f"it is longer than {MAX_REPLY_BYTES} bytes")
        if time.monotonic() > self._ends:
            raise httpx.ReadTimeout("the answer didn't end in time", request=self._response.request)

    def answer(self) -> HttpAnswer:
        return HttpAnswer(self._response.status_code, b"".join(self._chunks))

    def _refuse(self, why: str) -> None:
        raise httpx.DecodingError(f"the answer was rejected: {why}", request=self._response.request)


class Outage:
    """Log of an outage: one message when the server stops responding, and one when it responds again.

    A client and its agents share this object, so each message is logged once for all of them.
    """

    def __init__(self) -> None:
        self._is_logged = False

    def begin(self, why: str) -> None:
        """Log the outage, unless it has been logged already."""
        if not self._is_logged:
            self._is_logged = True
            log.warning("%s Idempotent requests are retried.", why)

    def end(self) -> None:
        """Log that the server responds again, if an outage was logged."""
        if self._is_logged:
            self._is_logged = False
            log.info("The server answers again.")


def exchange(
    request: Request[T], url: str, retries: int, outage: Outage
) -> Generator[float, HttpAnswer | httpx.HTTPError, T]:
    """Yield the delay in seconds before each attempt, and return the result.

    After each delay, the caller posts the request and sends the response or the exception to this generator.

    Args:
        url: The address of the server, for messages.
        retries: Maximum number of attempts after the first.

    Raises:
        ReplyError: The server returned an error, and no retry is left or would help.
        NoReplyError: The server didn't respond, and no retry is left or safe.
    """
    delay, timeouts = 0.0, 0
    for attempt in range(retries + 1):
        answer = yield delay
        if isinstance(answer, HttpAnswer):
            reply = _read(answer, request)
            is_away = answer.status in _AWAY_STATUS
            if "error" not in reply:
                outage.end()
                result: T = reply["result"]
                return result
            error: ReplyError | NoReplyError = reply_error(reply["error"])
            not_handled = answer.status == _UNAVAILABLE or reply["error"]["code"] == _OVERLOADED
            retry = not_handled or (request.repeatable and is_away)
        else:
            is_away = True
            error = _no_reply(request, url, answer)
            timeouts += isinstance(answer, httpx.ReadTimeout)
            retry = isinstance(answer, _NEVER_SENT) or (request.repeatable and not isinstance(answer, _PERMANENT))
        if not retry or attempt == retries or timeouts == _MAX_TIMEOUTS:
            raise error from None  # the cause would add forty lines of httpx above the message
        if is_away and attempt >= _QUIET_ATTEMPTS:
            outage.begin(f"{_host(url)} doesn't answer.")
        delay = _delay(attempt, error)
    raise AssertionError("the last attempt returns or raises")


def reply_error(error: dict[str, Any]) -> ReplyError:
    """Return the exception for the error of a checked response."""
    return ReplyError(error["code"], error["message"], error["data"])


def check_response(response: Any, request: Request[Any]) -> dict[str, Any] | None:
    """Return a dictionary with the `result` or the `error` of a JSON-RPC response, or None if it isn't a response.

    If the result doesn't have the form that the method promises, the dictionary contains an error.
    """
    if isinstance(response, dict):
        match response.get("error"):
            case {"code": int(code), "message": str(message), **more}:
                data = more.get("data")
                return {"error": {"code": code, "message": message, "data": data if isinstance(data, dict) else {}}}
        if "result" in response:
            if request.fits(response["result"]):
                return {"result": response["result"]}
            return no_json_rpc(
                f"The result of {request.method} doesn't have the expected form: is this a Toolpack Server of this "
                "version?"
            )
    return None


def no_json_rpc(message: str, **data: Any) -> dict[str, Any]:
    """Return the error for a response that doesn't seem to come from a Toolpack Server."""
    return {"error": {"code": _NO_JSON_RPC, "message": message, "data": data}}


def _read(answer: HttpAnswer, request: Request[Any]) -> dict[str, Any]:
    """Return the checked JSON-RPC response. Any other response, for example a proxy's, becomes an error."""
    try:
        reply = json.loads(answer.content)
    except (ValueError, RecursionError):
        reply = None
    if request.members and isinstance(reply, list):
        return {"result": reply}
    response = check_response(reply, request)
    if response is not None and not (request.members and "result" in response):
        return response
    message = f"HTTP {answer.status} with a body that isn't JSON-RPC: is this a Toolpack Server?"
    return no_json_rpc(message, status=answer.status)


def _no_reply(request: Request[Any], url: str, answer: httpx.HTTPError) -> NoReplyError:
    """Return the exception for a request that got no response. Its message suggests a cause."""
    question = "does it speak https, or http?" if "[SSL" in str(answer) else "is the server running?"
    return NoReplyError(
        f"{request.method} got no answer from {_host(url)} ({type(answer).__name__}: {answer}): {question}"
    )


def _host(url: str) -> str:
    """Return the scheme and the host of a URL. The path isn't shown, because an agent's path is secret."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def _delay(attempt: int, error: ReplyError | NoReplyError) -> float:
    """Return the delay before the next attempt: `retry_after_seconds` plus exponential backoff with jitter."""
    longest = backoff(attempt, _FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS)
    value = error.data.get("retry_after_seconds") if isinstance(error, ReplyError) else None
    retry_after = value if isinstance(value, int | float) and value > 0 else 0.0  # also 0.0 for NaN
    return min(retry_after, _MAX_DELAY_SECONDS) + random.uniform(longest * 3 / 4, longest)  # noqa: S311 - no secret
