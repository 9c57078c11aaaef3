"""Requests to a server that the user has named with `--url`.

The rule: a token is sent to that server and to no other, so redirects aren't followed. The standard library sends them,
because the command works without the Python client's package.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import click

REDIRECTS = {301, 302, 303, 307, 308}

Send = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Sends a request, by method and parameters, and gets its result."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller: urllib would send all headers, the token too, to any other server."""

    def redirect_request(self, *_args: Any) -> None:
        """Follow none."""


def remote(url: str, token: str | None) -> Send:
    """Get a function that sends requests to a server.

    Raises:
        UsageError: The URL is none of a server.
        ClickException: When it is used: the server can't be reached, or answers with an error.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError("--url is not of the form http://host:port.")
    opener = urllib.request.build_opener(_NoRedirects)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    async def send(method: str, params: dict[str, Any]) -> Any:
        body = request_body(method, params)
        request = urllib.request.Request(f"{url.rstrip('/')}/rpc", body, headers)  # noqa: S310 - checked above
        try:
            with opener.open(request) as reply:
                return result_of(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code in REDIRECTS:
                    place = error.headers.get("Location", "another address")
                    raise click.ClickException(f"{url} redirects to {place}: give the server's own address.") from None
                return result_of(error.read())
        except urllib.error.URLError as error:
            raise click.ClickException(f"{url} can't be reached: {error.reason}. Is the server running?") from None

    return send


def request_body(method: str, params: dict[str, Any]) -> bytes:
    """Get the JSON of a request."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def result_of(reply: bytes) -> Any:
    """Get the result that an answer has.

    Raises:
        ClickException: It has an error, or is none of a Toolpack Server.
    """
    try:
        answer = json.loads(reply)
    except ValueError:
        raise click.ClickException("the answer is not JSON: is this a Toolpack Server?") from None
    if not isinstance(answer, dict) or not answer.keys() & {"result", "error"}:
        raise click.ClickException("the answer is not one of JSON-RPC: is this a Toolpack Server?")
    if "error" in answer:
        error = answer["error"]
        raise click.ClickException(f"{error['message']}: {error.get('data', {}).get('detail', '')}".rstrip(": "))
    return answer["result"]
