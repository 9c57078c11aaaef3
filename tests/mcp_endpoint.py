"""A server in this process, with a session and scripted MCP clients of both eras.

The *legacy era* are the protocol versions with `initialize`; the *modern era* are those without it.
"""

import contextlib
import json

import http_endpoint
import pytest
import serving

from toolpack_server.packs.loading import load_catalog
from toolpack_server.web import event_stream

CATALOG = load_catalog((serving.PACKS,), ("conformance",))
MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "a script", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
STREAM = {"Accept": "application/json, text/event-stream"}


class Mcp:
    """A session on a server, and its clients.

    Args:
        endpoint: The server.
        path: The path of the session. If it is None, a session is created.
    """

    def __init__(self, endpoint):
        self.endpoint, self.http = endpoint, endpoint.http
        self.session = endpoint.rpc("create_session")
        self.path = self.session["mcp_path"]

    def rpc(self, method, **params):
        return self.endpoint.rpc(method, session_id=self.session["session_id"], **params)

    def post(self, message, headers=(), *, path=None):
        content = message if isinstance(message, bytes | str) else json.dumps(message)
        all_headers = {"Content-Type": "application/json", **dict(headers)}
        return self.http.post(path or self.path, content=content, headers=all_headers)

    def legacy(self, method, /, _headers=(), **params):
        """Send a request of the legacy era, and return the HTTP response."""
        return self.post({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}, _headers)

    def modern(self, method, /, _headers=(), _meta=(), **params):
        """Send a request of the modern era. Headers that are None are omitted."""
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": params.get("name")} | dict(
            _headers
        )
        params["_meta"] = META | dict(_meta)
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return self.post(body, {name: value for name, value in headers.items() if value is not None})

    def send(self, era, method, /, **params):
        return (self.modern if era == MODERN else self.legacy)(method, **params)

    def call(self, era, name, /, _meta=(), **arguments):
        """Call a tool, and return the result."""
        meta = {"_meta": dict(_meta)} if _meta else {}
        if era != MODERN:
            reply = self.legacy("tools/call", name=name, arguments=arguments, **meta)
        else:
            reply = self.modern("tools/call", _meta=dict(_meta), name=name, arguments=arguments)
        assert reply.status_code == 200, reply.text
        return reply.json()["result"]

    def counts(self):
        return self.rpc("get_environment", pointer="/conformance/tally/counts")


@contextlib.contextmanager
def served(sign_seconds=event_stream.SIGN_SECONDS, **settings):
    """Start a server and yield its `Mcp`. While a call runs, its event stream gets a comment every `sign_seconds`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_stream, "SIGN_SECONDS", sign_seconds)
        with http_endpoint.served("h11", catalog=CATALOG, log_calls="off", **settings) as endpoint:
            yield Mcp(endpoint)


def events(text):
    """Return the events of a stream: each event's data, or None for a comment."""
    items = []
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith(":"):
            assert len(lines) == 1
            items.append(None)
        else:
            assert lines[0] == "event: message"
            assert len(lines) == 2
            items.append(json.loads(lines[1].removeprefix("data: ")))
    return items


def refusal(reply, status, code):
    """Check a JSON-RPC error, and return it."""
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text
    assert reply.headers["content-type"] == "application/json"
    return reply.json()["error"]
