"""HTTP headers of MCP: the headers that repeat parts of a modern message, and CORS.

A proxy can route a message by a header while this server reads its body, so header and body must agree.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from starlette.types import Scope

from toolpack_server.base.errors import HttpRefusedError, shown
from toolpack_server.features.protocols.mcp.messages import (
    HEADER_MISMATCH,
    NAMING,
    TASK_METHODS,
    VERSION_KEY,
    McpMessage,
)
from toolpack_server.web.auth import names_loopback

VERSION, METHOD, NAME = b"mcp-protocol-version", b"mcp-method", b"mcp-name"

_ENCODED = re.compile(r"=\?base64\?(.*)\?=")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(.+)", re.IGNORECASE)


def check_once(scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Raise `HttpRefusedError` if an MCP header is duplicated, because a proxy might read another copy of it."""
    if len(headers) == len(scope["headers"]):
        return
    names = [name for name, _ in scope["headers"] if name.startswith(b"mcp-")]
    duplicated = next((name for name in names if names.count(name) > 1), None)
    if duplicated is not None:
        raise HttpRefusedError(400, f"The header {duplicated.decode('latin-1')} is duplicated: send it once.")


def version_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the version of MCP in the headers, or None."""
    version = headers.get(VERSION)
    return None if version is None else version.decode("latin-1").strip()


class HeaderCheck:
    """Compares a modern message with its HTTP headers. It is a `CheckHeaders` of `protocol.py`."""

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self._headers = headers

    def __call__(self, message: McpMessage) -> None:
        self._compare(message, VERSION, message.meta[VERSION_KEY])
        self._compare(message, METHOD, message.method)
        # The header is optional here, because FastMCP's client omits the name of a handle.
        if message.method in NAMING and (NAME in self._headers or not message.method.startswith(TASK_METHODS)):
            self._compare(message, NAME, message.named)

    def _compare(self, message: McpMessage, name: bytes, value: Any) -> None:
        """Raise `McpRefusedError` unless the header has this value.

        If the value is None, the header must be missing.
        """
        header = self._headers.get(name)
        decoded = None if header is None else _decode(header.decode("latin-1").strip(" \t"))
        shown_name = name.decode().title().replace("Mcp-Protocol", "MCP-Protocol")
        if header is None and value is None:
            return
        if header is None:
            problem = f"is missing: send it with the value {shown(str(value))!r}"
        elif value is None:
            problem = "has no counterpart in the message: omit it"
        elif decoded is None:
            problem = "is not valid base64 of UTF-8: correct it"
        elif decoded == str(value):
            return
        else:
            problem = f"is {shown(decoded)!r}, but the message has {shown(str(value))!r}: send the same value"
        described = (HEADER_MISMATCH, f"The header {shown_name} {problem}.", {"header": shown_name})
        raise message.refusal(described)


def _decode(header: str) -> str | None:
    """Decode the value of a header, which can be in base64. Return None if the base64 is invalid."""
    match = _ENCODED.fullmatch(header)
    if match is None:
        return header
    try:
        text = base64.b64decode(match[1], validate=True)
        # Several base64 strings can decode to the same bytes. Accept only the string that encoding these bytes returns.
        return text.decode() if base64.b64encode(text).decode() == match[1] else None
    except (binascii.Error, ValueError):
        return None


def encode(text: str) -> str:
    """Encode a value for a header, in base64 if a header can't carry the plain text."""
    if text.isascii() and text.isprintable() and text == text.strip() and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def cross_origin(headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """Return the CORS headers of a response, or no headers for a request without `Origin`.

    Raises:
        HttpRefusedError: Web pages of this origin aren't allowed to use the server.
    """
    origin = headers.get(b"origin")
    if origin is None:
        return []
    match = _ORIGIN.fullmatch(origin.decode("latin-1").strip())
    authority = match[1].lower() if match else ""
    if not names_loopback(authority) and authority != headers.get(b"host", b"").decode("latin-1").lower():
        raise HttpRefusedError(
            403, "A web page of another origin can't use this server: call the server from a program."
        )
    return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]


def preflight(headers: Mapping[bytes, bytes], allowed: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that answer a CORS preflight request."""
    requested = headers.get(b"access-control-request-headers")
    return [
        (b"allow", allowed + b", OPTIONS"),
        (b"access-control-allow-methods", allowed),
        *([] if requested is None else [(b"access-control-allow-headers", requested)]),
        (b"access-control-max-age", b"600"),
    ]
