"""The headers of MCP over HTTP: what a modern client repeats of its message, and which web pages may send one.

A proxy may go by a header and this server by the body, so the two must say the same.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from toolpack_server.base.errors import HttpRefusedError, shown
from toolpack_server.features.protocols.mcp.messages import HEADER_MISMATCH, NAMING, VERSION_KEY, McpMessage
from toolpack_server.web.auth import names_loopback

VERSION, METHOD, NAME = b"mcp-protocol-version", b"mcp-method", b"mcp-name"

_ENCODED = re.compile(r"=\?base64\?(.*)\?=")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(.+)", re.IGNORECASE)


def check_once(scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Reject duplicated MCP headers; a proxy may read the other one."""
    if len(headers) == len(scope["headers"]):
        return
    names = [name for name, _ in scope["headers"] if name.startswith(b"mcp-")]
    duplicated = next((name for name in names if names.count(name) > 1), None)
    if duplicated is not None:
        raise HttpRefusedError(400, f"The header {duplicated.decode('latin-1')} is duplicated: send it once.")


def version_of(headers: Mapping[bytes, bytes]) -> str | None:
    version = headers.get(VERSION)
    return None if version is None else version.decode("latin-1").strip()


class HeaderCheck:
    """Compare a modern request with its headers; see `CheckHeaders` in `protocol.py`."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self._headers = headers

    def __call__(self, message: McpMessage) -> None:
        self._compare(message, VERSION, message.meta[VERSION_KEY])
        self._compare(message, METHOD, message.method)
        if message.method in NAMING:
            self._compare(message, NAME, message.named)

    def _compare(self, message: McpMessage, name: bytes, value: Any) -> None:
        header = self._headers.get(name)
        said = None if header is None else _decoded(header.decode("latin-1").strip(" \t"))
        shown_name = name.decode().title().replace("Mcp-Protocol", "MCP-Protocol")
        if header is None and value is None:
            return
        if header is None:
            problem = f"is missing: send it with the value {shown(str(value))!r}"
        elif value is None:
            problem = "has no counterpart in the message: omit it"
        elif said is None:
            problem = "is not valid base64 of UTF-8: correct it"
        elif said == str(value):
            return
        else:
            problem = f"says {shown(said)!r}, but the message {shown(str(value))!r}: send the same"
        described = (HEADER_MISMATCH, f"The header {shown_name} {problem}.", {"header": shown_name})
        raise message.refusal(described)


def _decoded(header: str) -> str | None:
    """Get the text of a header, which is in base64 if it couldn't be sent otherwise; None if it can't be decoded."""
    encoded = _ENCODED.fullmatch(header)
    if encoded is None:
        return header
    try:
        text = base64.b64decode(encoded[1], validate=True)
        return text.decode() if base64.b64encode(text).decode() == encoded[1] else None
    except (binascii.Error, ValueError):
        return None


def encoded(text: str) -> str:
    """Get a text as a header can carry it: as it is, or in base64."""
    if text.isascii() and text.isprintable() and text == text.strip() and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def cross_origin(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Get the headers that let the web page read an answer; none if the request comes from no web page.

    Raises:
        HttpRefusedError: Pages of its origin may not use this server.
    """
    origin = headers.get(b"origin")
    if origin is None:
        return []
    found = _ORIGIN.fullmatch(origin.decode("latin-1").strip())
    authority = found[1].lower() if found else ""
    if not names_loopback(authority) and authority != headers.get(b"host", b"").decode("latin-1").lower():
        raise HttpRefusedError(403, "A web page of another origin may not use this server: call it from a program.")
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def preflight(headers: Mapping[bytes, bytes], allowed: bytes) -> list[tuple[bytes, bytes]]:
    """Get the headers that answer a browser's question whether a web page may send a request."""
    asked = headers.get(b"access-control-request-headers")
    return [
        (b"allow", allowed + b", OPTIONS"),
        (b"access-control-allow-methods", allowed),
        *([] if asked is None else [(b"access-control-allow-headers", asked)]),
        (b"access-control-max-age", b"600"),
    ]
