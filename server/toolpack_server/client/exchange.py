"""One request and its answer, without I/O: what is sent, when it is sent again, and what the answer means.

When to retry is decided here, once. The clients differ only in how they post and how they wait. Whatever a
server answers becomes a result of the promised form or a `ClientError`, within bounds of time and size.

A request is retried if the server certainly didn't handle it (it couldn't be reached, or answered 503 or -32006). If no
answer came, only idempotent requests are: reads, and `run_function`, which always has a `call_id`. A batch is retried
as a whole or not at all, so that its calls run in order.
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
"""With the pauses before them they last for 31 to 42 seconds, in which an ordinary restart is over."""
MAX_REPLY_BYTES = 2**28  # four times what a server sends unless its settings say otherwise

_FIRST_PAUSE_SECONDS = 0.1
_DOUBLINGS = 10  # of a pause: more than there are until the longest one
_LONGEST_PAUSE_SECONDS = 5.0  # also of those that a server asks for
_QUIET_ATTEMPTS = 3  # after which the log says that there is no answer
_TIMEOUTS = 3  # attempts of one request that may last for the whole of its time

_OVERLOADED = -32006
_UNAVAILABLE = 503
_AWAY_STATUS = (502, 503, 504)  # the last and the first by a proxy
_NO_JSON_RPC = -32000
_NO_JSON, _NO_REQUEST, _WRONG, _TOO_LARGE = -32700, -32600, -32602, -32007
_BODY_TOO_LARGE = 413
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_NEVER_BETTER = (httpx.LocalProtocolError, httpx.DecodingError)

log = logging.getLogger("toolpack_server.client")


def backoff(attempt: int, first: float, longest: float) -> float:
    """Get the seconds before the next attempt, without jitter: from the first pause on twice as many each time."""
    return min(first * 2.0 ** min(attempt, _DOUBLINGS), longest)  # no float is large enough for a thousand


def is_unusable(error: Exception) -> bool:
    """Whether a request was refused for what it holds, such as what a model wrote: that says nothing of the server.

    It is no JSON (a lone surrogate), nested too deeply, wrong, or too large.
    """
    return isinstance(error, ReplyError) and (
        error.code in {_NO_JSON, _NO_REQUEST, _WRONG, _TOO_LARGE} or error.data.get("status") == _BODY_TOO_LARGE
    )


class HttpAnswer(NamedTuple):
    """What has come."""

    status: int
    content: bytes


class ReplyBody:
    """The content of a response, as it comes.

    Args:
        response: The response, of which nothing but the head was read.
        seconds: In which all of it must come.
    """

    def __init__(self, response: httpx.Response, seconds: float) -> None:
        self._response, self._ends = response, time.monotonic() + seconds
        self._chunks: list[bytes] = []
        self._bytes = 0
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            self._refuse("it is compressed, which wasn't asked for")

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        if self._bytes > MAX_REPLY_BYTES:
            self._refuse(f"it is longer than {MAX_REPLY_BYTES} bytes")
        if time.monotonic() > self._ends:
            raise httpx.ReadTimeout("the answer doesn't end", request=self._response.request)

    def answer(self) -> HttpAnswer:
        return HttpAnswer(self._response.status_code, b"".join(self._chunks))

    def _refuse(self, why: str) -> None:
        raise httpx.DecodingError(f"the answer isn't read, as {why}", request=self._response.request)


class Outage:
    """Says in the log once that a server doesn't answer, until it has answered again; shared by a client's agents."""

    def __init__(self) -> None:
        self._is_told = False

    def goes_on(self, why: str) -> None:
        if not self._is_told:
            self._is_told = True
            log.warning("%s Requests that can be repeated are sent again.", why)

    def is_over(self) -> None:
        if self._is_told:
            self._is_told = False
            log.info("The server answers again.")


def exchange(
    request: Request[T], url: str, retries: int, outage: Outage
) -> Generator[float, HttpAnswer | httpx.HTTPError, T]:
    """Yield the pause in seconds before each attempt, receive its answer or exception, and return the result.

    Args:
        url: Where the request is sent to.

    Raises:
        ReplyError: The server answered with an error, and no retry is left or useful.
        NoReplyError: It didn't answer, and no retry is left or safe.
    """
    pause, timeouts = 0.0, 0
    for attempt in range(retries + 1):
        answer = yield pause
        if isinstance(answer, HttpAnswer):
            reply = _read(answer, request)
            is_away = answer.status in _AWAY_STATUS
            if "error" not in reply:
                outage.is_over()
                result: T = reply["result"]
                return result
            error: ReplyError | NoReplyError = reply_error(reply["error"])
            not_handled = answer.status == _UNAVAILABLE or reply["error"]["code"] == _OVERLOADED
            retry = not_handled or (request.repeatable and is_away)
        else:
            is_away = True
            error = _no_reply(request, url, answer)
            timeouts += isinstance(answer, httpx.ReadTimeout)
            retry = isinstance(answer, _NEVER_SENT) or (request.repeatable and not isinstance(answer, _NEVER_BETTER))
        if not retry or attempt == retries or timeouts == _TIMEOUTS:
            raise error from None  # which would put forty lines of httpx's above the one that says it
        if is_away and attempt >= _QUIET_ATTEMPTS:
            outage.goes_on(f"{_host(url)} doesn't answer.")
        pause = _pause(attempt, error)
    raise AssertionError("the last attempt returns or raises")


def reply_error(error: dict[str, Any]) -> ReplyError:
    return ReplyError(error["code"], error["message"], error["data"])


def checked(response: Any, request: Request[Any]) -> dict[str, Any] | None:
    """Get the result or the error of a response, in the form that it must have; None if it is no response."""
    if isinstance(response, dict):
        match response.get("error"):
            case {"code": int(code), "message": str(message), **more}:
                data = more.get("data")
                return {"error": {"code": code, "message": message, "data": data if isinstance(data, dict) else {}}}
        if "result" in response:
            if request.fits(response["result"]):
                return {"result": response["result"]}
            return no_json_rpc(
                f"{request.method} was answered with a result of another form than it must have: is this a Toolpack "
                "Server of this version?"
            )
    return None


def no_json_rpc(message: str, **data: Any) -> dict[str, Any]:
    return {"error": {"code": _NO_JSON_RPC, "message": message, "data": data}}


def _read(answer: HttpAnswer, request: Request[Any]) -> dict[str, Any]:
    """Get the JSON-RPC response; a proxy between client and server may have answered with something else."""
    try:
        reply = json.loads(answer.content)
    except (ValueError, RecursionError):
        reply = None
    if request.members and isinstance(reply, list):
        return {"result": reply}
    found = checked(reply, request)
    if found is not None and not (request.members and "result" in found):
        return found
    message = f"HTTP {answer.status} with a body that isn't JSON-RPC: is this a Toolpack Server?"
    return no_json_rpc(message, status=answer.status)


def _no_reply(request: Request[Any], url: str, answer: httpx.HTTPError) -> NoReplyError:
    question = "does it speak https, or http?" if "[SSL" in str(answer) else "is the server running?"
    return NoReplyError(
        f"{request.method} got no answer from {_host(url)} ({type(answer).__name__}: {answer}): {question}"
    )


def _host(url: str) -> str:
    """Get the part of a URL that isn't secret: an agent's path is."""
    found = httpx.URL(url)
    return f"{found.scheme}://{found.netloc.decode()}"


def _pause(attempt: int, error: ReplyError | NoReplyError) -> float:
    """Get the seconds before the next attempt: exponential backoff with jitter, after `retry_after_seconds`."""
    longest = backoff(attempt, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    retry_after = error.data.get("retry_after_seconds") if isinstance(error, ReplyError) else None
    asked = retry_after if isinstance(retry_after, int | float) and retry_after > 0 else 0.0  # false for NaN, too
    return min(asked, _LONGEST_PAUSE_SECONDS) + random.uniform(longest * 3 / 4, longest)  # noqa: S311 - no secret
