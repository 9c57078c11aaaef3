"""Authentication by bearer tokens (RFC 6750), or, on a server without tokens, by the Host and Origin headers.

Tokens are compared in constant time and never logged. A server without tokens refuses web pages of other origins: a
page can send requests to any address, and with DNS rebinding it can also read the answers.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache

from toolpack_server.base.errors import HttpRefusedError, SettingsError
from toolpack_server.base.settings import Settings

OTHER_ORIGIN = "A web page of another origin can't use this server: call the server from a program."
NOBODY = "nobody"  # a token with this name gives access to the sessions that were created without tokens


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached only from this machine: `localhost`, or a loopback IP address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: Settings) -> None:
    """Check the tokens file, and that a server that other machines can reach has tokens or `--no-auth`.

    Raises:
        SettingsError: The tokens file is invalid, or a server that other machines can reach has neither tokens nor
            `--no-auth`.
    """
    _names(settings)
    if is_loopback(settings.host) or settings.tokens or settings.tokens_file or settings.no_auth:
        return
    raise SettingsError(
        f"{settings.host} can be reached from other machines, so tokens are needed: set TOOLPACK_TOKENS=name:token, or "
        "pass --no-auth to serve any client. In a container: TOKEN=$(openssl rand -hex 16); docker run -p 8000:8000 "
        "-v toolpack-data:/data -e TOOLPACK_TOKENS=me:$TOKEN toolpack-server"
    )


def new_token(name: str) -> tuple[str, str]:
    """Return a new token and its line for the tokens file, which contains only the hash.

    Raises:
        SettingsError: The name is empty or not printable, starts or ends with a space, or starts with #.
    """
    if not name or name.startswith("#") or name != name.strip() or not name.isprintable():
        raise SettingsError("A name is printable text that does not start with # or a space: choose another.")
    token = secrets.token_urlsafe(32)
    return token, f"{name}:{_digest(token).hex()}"


def _owner(name: str) -> str:
    """Return the owner for a name in the settings. `NOBODY` stands for "", the owner of sessions without an owner."""
    return "" if name == NOBODY else name


def _names(settings: Settings) -> dict[bytes, str]:
    """Return the names of owners by the hashes of their tokens."""
    names = {_digest(token.get_secret_value()): name for name, token in settings.tokens.items()}
    if settings.tokens_file is None:
        return names
    for number, line in enumerate(settings.tokens_lines, 1):
        name, _, digest = (text.strip() for text in line.rpartition(":"))
        if not line.strip() or line.strip().startswith("#"):
            continue
        if not name or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise SettingsError(f"Line {number} of the tokens file is not name:hash: use `toolpack-server token NAME`.")
        if names.setdefault(bytes.fromhex(digest), name) != name:
            raise SettingsError(
                f"Line {number} of the tokens file has the token of another owner: create a new one with "
                "`toolpack-server token NAME`."
            )
    if not names:
        raise SettingsError("The tokens file has no token: add a line from `toolpack-server token NAME`.")
    return names


class TokenGate:
    """Accepts or refuses requests by their headers.

    Raises:
        SettingsError: The tokens file is invalid.
    """

    def __init__(self, settings: Settings) -> None:
        self._owners = {digest: _owner(name) for digest, name in _names(settings).items()}
        only_local, names = is_loopback(settings.host), frozenset(map(str.lower, settings.host_names))
        # Cached, because nearly all requests contain the same Host header.
        self._names_this_server = lru_cache(maxsize=64)(lambda header: _is_named(header, names, only_local))

    def owner(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the owner whose token a request contains, or "" on a server without tokens.

        Raises:
            HttpRefusedError: The token is missing or unknown, or, on a server without tokens, `check_origin` refuses
                the request.
        """
        if not self._owners:
            self.check_origin(headers)
            return ""
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise HttpRefusedError(401, "A token is needed: send the header Authorization: Bearer <token>.")
        # Compare with all hashes, even after a match, so that the duration reveals nothing about the tokens.
        digest = _digest(token.strip())
        match = None
        for known_digest, owner in self._owners.items():
            if hmac.compare_digest(known_digest, digest):
                match = owner
        if match is None:
            raise HttpRefusedError(401, "The token is not known: check it, or ask the operator of the server for one.")
        return match

    def hides_unowned_sessions(self) -> bool:
        """Return whether no token gives access to the sessions that were created without tokens."""
        return bool(self._owners) and "" not in self._owners.values()

    @property
    def several(self) -> bool:
        """Whether the server has several owners."""
        return len({*self._owners.values()}) > 1

    def check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """On a server without tokens, refuse requests from web pages of other sites.

        A foreign Host header indicates DNS rebinding, and a foreign Origin header indicates another site. Ports can
        differ.
        """
        self.check_host(headers)
        origin = headers.get(b"origin")
        if origin is None or self._owners:
            return
        page = origin.decode("latin-1").partition("://")[2]
        host = headers.get(b"host", b"").decode("latin-1")
        if not (split_host(page) == split_host(host) != "" or (names_loopback(page) and names_loopback(host))):
            raise HttpRefusedError(403, OTHER_ORIGIN)

    def check_own_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """On a server without tokens, refuse a web page with another origin, even one from another local port.

        This is stricter than `check_origin`, because browsers send WebSocket handshakes, and requests that have no
        body, without a preflight request that the server could refuse.
        """
        page = headers[b"origin"].partition(b"://")[2].lower()
        if not self._owners and page != headers.get(b"host", b"").lower():
            raise HttpRefusedError(403, OTHER_ORIGIN)

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """On a server without tokens, refuse a request with a Host header that names another server."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._owners and not self._names_this_server(host):
            raise HttpRefusedError(
                403,
                f"The Host header names {split_host(host)!r}, which isn't this server's: use its address, or start it "
                "with --host-name.",
            )


def split_host(header: str) -> str:
    """Return the lower-case name or address of a Host header without its port, or "" if it is malformed."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:@/\\?#]+))(?::\d{0,5})?", header)
    return (match[1] or match[2]).lower() if match else ""


def names_loopback(header: str) -> bool:
    """Return whether a Host header names a loopback address, with any port."""
    return is_loopback(split_host(header))


def _is_named(header: str, names: frozenset[str], only_local: bool) -> bool:
    """Return whether a Host header names this server: by a configured name, or by an IP address.

    IP addresses are safe, because DNS rebinding needs a name.
    """
    host = split_host(header)
    if is_loopback(host) or host in names:
        return True
    try:
        return not only_local and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=32).digest()
