"""The checked server and its sessions, with checks of the form of its responses.

The project's own client isn't used, because its retries would hide faults. The time and size of a response are limited.
Any response becomes a value or a `Failed`. Redirects to other servers aren't followed.
"""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from uuid import uuid4

import httpx

from toolpack_conformance.bounds import bounded_transport, within

TOOLPACK = "conform"
MAX_BYTES = 2**24  # max size of a response; no check needs more
_UNAUTHORIZED, _REFUSED = 401, 400
ACCEPT = {"Accept": "application/json, text/event-stream"}  # MCP clients must send it


Call = tuple[str, Mapping[str, Any]]
"""The name of a function, and its arguments."""


class Failed(Exception):  # noqa: N818 - the check failed, not this program
    """The server doesn't keep a guarantee. The message contains the expected and the actual result."""


class Refused(Failed):
    """The server refused a request, but not with an error that its protocol defines."""


class NotTried(Failed):
    """There is no time left for a request. The result of the check is unknown."""


def expect(got: Any, expected: Any, what: str) -> None:
    """Compare a value and its type with the expected ones.

    Raises:
        Failed: They differ. The message begins with `what`.
    """
    if got != expected or type(got) is not type(expected):
        raise Failed(f"{what}: expected {_shown(expected)}, got {_shown(got)}")


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 200 else f"{text[:200]}…"  # noqa: PLR2004 - a line or two


class Target:
    """The server at a URL.

    Args:
        seconds: Time limit for one response.
        end_time: Time on the monotonic clock after which no request is sent.
        token_paths: Prefixes of the paths to which the token is sent.

    Raises:
        Failed: The URL is invalid.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        transport: httpx.BaseTransport | None,
        seconds: float,
        end_time: float = float("inf"),
        token_paths: tuple[str, ...] = ("/rpc", "/openrpc"),
    ) -> None:
        self.token_headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._token_paths = token_paths
        self._seconds, self._end_time = seconds, end_time
        # Compressed responses are refused, because a few compressed bytes can expand to gigabytes.
        plain = {"Accept-Encoding": "identity"}
        if not url.startswith(("http://", "https://")):
            raise Failed(f"{url!r} isn't the URL of a server: give one such as http://127.0.0.1:8000")
        try:
            self._http = httpx.Client(base_url=url, transport=transport or bounded_transport(), headers=plain)
        except httpx.InvalidURL as error:
            raise Failed(f"{url!r} isn't a valid URL: {error}") from None
        self.has_token = token is not None
        self.label = uuid4().hex

    def post(
        self,
        content: bytes,
        path: str = "/rpc",
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        *,
        token: bool = True,
        http_method: str = "POST",
    ) -> httpx.Response:
        """Send a request and return the response. The token is sent only to `token_paths`.

        Raises:
            Failed: There was no response.
            NotTried: There is no time left.
        """
        seconds_left = self._end_time - time.monotonic()
        if seconds_left <= 0:
            raise NotTried("there is no time left")
        secret = self.token_headers if token and path.startswith(self._token_paths) else {}
        sent = {"Content-Type": content_type, **secret, **(headers or {})}
        try:
            with within(min(self._seconds, seconds_left)):
                return self._read(self._http.build_request(http_method, path, content=content, headers=sent))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if seconds_left < self._seconds and isinstance(error, httpx.TimeoutException):
                raise NotTried("there was no time left for the response") from None
            why = f"{type(error).__name__} {error}"
            raise Failed(f"no response to a request at {path[:8]}… of {self._http.base_url}: {why}") from None

    def _read(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read its response, up to the maximum length."""
        response = self._http.send(request, stream=True, follow_redirects=False)
        with contextlib.closing(response):
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise Failed("a response is compressed, although the request didn't accept compression")
            chunks = list[bytes]()
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                if response.num_bytes_downloaded > MAX_BYTES:
                    raise Failed(f"a response is longer than {MAX_BYTES >> 20} MiB")
        headers = [(name, value) for name, value in response.headers.multi_items() if name != "transfer-encoding"]
        return httpx.Response(response.status_code, headers=headers, content=b"".join(chunks), request=request)

    def reply(self, method: str, params: Any = None, path: str = "/rpc") -> dict[str, Any]:
        """Send a request and return the response, which must be a valid JSON-RPC 2.0 response."""
        request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {} if params is None else params}
        response = self.post(json.dumps(request).encode(), path)
        if response.status_code == _UNAUTHORIZED:
            raise Refused("the server needs a token, or another one (HTTP 401): pass it with --token")
        reply: dict[str, Any] = parse_json(response)
        if response.status_code >= _REFUSED and isinstance(reply, dict) and reply.get("id") is None:
            raise Refused(f"{method} was refused (HTTP {response.status_code}): {_shown(reply.get('error'))}")
        check_response(reply, 7)
        return reply

    def result(self, method: str, params: Any = None, path: str = "/rpc") -> Any:
        """Send a request that must succeed, and return the result."""
        reply = self.reply(method, params, path)
        if "result" not in reply:
            raise Failed(f"{method} returned an error: {_shown(reply['error'])}")
        return reply["result"]

    def error(self, method: str, params: Any = None, path: str = "/rpc") -> dict[str, Any]:
        """Send a request that must be refused, and return the error."""
        reply = self.reply(method, params, path)
        if "error" not in reply:
            raise Failed(f"{method} must be refused, but it returned {_shown(reply['result'])}")
        error: dict[str, Any] = reply["error"]
        return error

    def code(self, method: str, params: Any = None, path: str = "/rpc") -> int | None:
        """Send a request and return the error's code, or None if the response isn't an error."""
        error: dict[str, Any] = self.reply(method, params, path).get("error", {})
        return error.get("code")

    def code_without_session(self, method: str, path: str) -> int | None:
        """Send a request to an agent path or MCP path that has no session, and return the error's code.

        The response must have the request's id, or null if the server hasn't read the request.
        """
        request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {}}
        reply = parse_json(self.post(json.dumps(request).encode(), path, headers=ACCEPT))
        check_response(reply, reply.get("id") if isinstance(reply, dict) else None)
        if reply["id"] not in (None, 7):
            raise Failed(f"the id of a response at a path without a session: {_shown(reply['id'])}")
        code: int | None = reply.get("error", {}).get("code")
        return code

    def batch(self, method: str, params: Sequence[Mapping[str, Any]], path: str = "/rpc") -> list[Any]:
        """Send requests of one method as a batch and return their results in the order of the requests."""
        requests = [{"jsonrpc": "2.0", "id": n, "method": method, "params": each} for n, each in enumerate(params)]
        replies = parse_json(self.post(json.dumps(requests).encode(), path))
        if not isinstance(replies, list) or len(replies) != len(requests):
            raise Failed(f"the response to a batch of {len(requests)} requests isn't a list of the same length")
        results = {}
        for reply in replies:
            check_response(reply, reply.get("id") if isinstance(reply, dict) else None)
            if "result" not in reply:
                raise Failed(f"{method} in a batch returned an error: {_shown(reply['error'])}")
            results[reply["id"]] = reply["result"]
        return [results[number] for number in range(len(requests))]

    def create(self, **params: Any) -> "Session":
        """Create a session: with the toolpack of the probes, or with a task."""
        toolpacks = {} if "task" in params else {"toolpacks": [TOOLPACK]}
        return Session(self, self.result("create_session", {"labels": {"conform": self.label}, **toolpacks, **params}))

    def close(self) -> None:
        """Close all sessions that this object created, and the connections."""
        self._end_time = float("inf")
        with contextlib.suppress(Failed):
            self.reply("close_session", {"labels": {"conform": self.label}})
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Session:
    """A session with the requests of its client and of its agent."""

    def __init__(self, target: Target, description: Any) -> None:
        if not isinstance(description, dict):
            raise Failed(f"a session is an object, not {_shown(description)}")
        missing = {"session_id", "agent_path", "mcp_path", "version", "labels"} - description.keys()
        if missing:
            raise Failed(f"a session lacks {', '.join(sorted(missing))}")
        for name in ("agent_path", "mcp_path"):
            path = description[name]
            if not isinstance(path, str) or not path.startswith("/") or path.startswith("//"):
                raise Failed(f"{name} of a session is a path on this server, not {_shown(path)}")
        self.target = target
        self.description: dict[str, Any] = description
        self.id: str = description["session_id"]
        self.agent_path: str = description["agent_path"]
        self.mcp_path: str = description["mcp_path"]

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request about this session that must succeed, and return the result."""
        return self.target.result(method, {"session_id": self.id, **params})

    def code(self, method: str, **params: Any) -> int | None:
        """Send a request about this session and return the error's code, or None if the response isn't an error."""
        return self.target.code(method, {"session_id": self.id, **params})

    def envelope(self, function: str, kwargs: Mapping[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """Call a function and return the envelope, with a result or an error."""
        return check_envelope(self.ask("run_function", function=function, kwargs=kwargs or {}, **params))

    def run(self, function: str, kwargs: Mapping[str, Any] | None = None, **params: Any) -> Any:
        """Call a function that must succeed, and return its result."""
        return result_of(function, self.envelope(function, kwargs, **params))

    def run_all(self, calls: Sequence[Call], **params: Any) -> list[Any]:
        """Call functions in a batch and return their results. All must succeed."""
        fixed = {"session_id": self.id, **params}
        requests = [{**fixed, "function": function, "kwargs": kwargs} for function, kwargs in calls]
        envelopes = self.target.batch("run_function", requests)
        return [result_of(call[0], check_envelope(each)) for call, each in zip(calls, envelopes, strict=True)]

    def run_as_agent(self, function: str, kwargs: Mapping[str, Any] | None = None, **params: Any) -> Any:
        """Call a function at the agent path and return its result. It must succeed."""
        request = {"function": function, "kwargs": kwargs or {}, **params}
        return result_of(function, check_envelope(self.target.result("run_function", request, self.agent_path)))

    def error(self, function: str, kwargs: Mapping[str, Any] | None = None, **params: Any) -> str:
        """Call a function that must fail, and return the envelope's error."""
        envelope = self.envelope(function, kwargs, **params)
        if not isinstance(envelope["error"], str):
            raise Failed(f"{function} must fail, but its envelope is {_shown(envelope)}")
        expect(envelope["result"], "", f"the result in the envelope of {function}, which failed")
        return envelope["error"]

    def error_code(self, function: str, kwargs: Mapping[str, Any] | None = None, **params: Any) -> int | None:
        """Call a function and return the code of the JSON-RPC error, or None if the response isn't an error."""
        return self.code("run_function", function=function, kwargs=kwargs or {}, **params)

    def forks(self, **params: Any) -> "list[Session]":
        """Fork the session, and return the forks."""
        return [Session(self.target, description) for description in self.ask("fork_session", **params)]

    def calls(self) -> list[dict[str, Any]]:
        """Return the trace's records of calls."""
        return [record for record in self.ask("get_trace") if record["kind"] == "call"]

    def contents(self) -> list[Any]:
        """Return the total, the list, the note and the version."""
        return [self.run("total"), self.run("second"), self.run("read_note"), self.version]

    @property
    def total(self) -> int:
        total: int = self.run("total")
        return total

    @property
    def version(self) -> int:
        version: int = self.ask("get_session")["version"]
        return version


def result_of(function: str, envelope: Mapping[str, Any]) -> Any:
    """Return the result in an envelope. Raise `Failed` if the envelope has an error."""
    if envelope["error"] is not None:
        raise Failed(f"{function} failed: {_shown(envelope['error'])}")
    return envelope["result"]


def check_envelope(envelope: Any) -> dict[str, Any]:
    """Return an envelope. Raise `Failed` if it doesn't contain both fields."""
    if not isinstance(envelope, dict) or not {"result", "error"} <= envelope.keys():
        raise Failed(f"an envelope is an object of result and error, not {_shown(envelope)}")
    return envelope


def parse_json(response: httpx.Response) -> Any:
    """Return the JSON of a response. Raise `Failed` if the body isn't JSON."""
    try:
        return response.json()
    except (ValueError, RecursionError):
        failed = Refused if response.is_error else Failed
        raise failed(f"the body of a response (HTTP {response.status_code}) isn't JSON") from None


def check_response(reply: Any, request_id: Any) -> None:
    """Check the form of a response (JSON-RPC 2.0, section 5)."""
    if not isinstance(reply, dict):
        raise Failed(f"a response is an object, not {_shown(reply)}")
    expect(reply.get("jsonrpc"), "2.0", "the member jsonrpc of a response")
    if ("result" in reply) == ("error" in reply):
        raise Failed(f"a response has either a result or an error, not {_shown(reply)}")
    if "id" not in reply:
        raise Failed("a response has no id")
    if reply["id"] is None and "error" in reply and request_id is not None:
        raise Refused("an error doesn't identify its request: its id is null")
    expect(reply["id"], request_id, "the id of a response")
    if "error" in reply:
        error = reply["error"]
        if (
            not isinstance(error, dict)
            or not isinstance(error.get("code"), int)
            or not isinstance(error.get("message"), str)
        ):
            raise Failed(f"an error is an object with a code and a message, not {_shown(error)}")
