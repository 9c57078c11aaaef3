"""Keys of receipts: Ed25519 (RFC 8032), as 64 hexadecimal digits each.

The private key is in a file that only its user can read, made when it is first needed. A public key is so
short that it is its own fingerprint. The package `cryptography` is imported when a key is used.
"""

import os
import re
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.secret_key import create_key

PublicKey = str
"""64 digits."""

_KEY = re.compile(r"[0-9a-f]{64}")
_SMALL_ORDER = {  # points for which anybody can sign some texts; the last bit, of a sign, doesn't count
    bytes.fromhex(each)
    for each in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        *(first + "ff" * 30 + "7f" for first in ("ec", "ed", "ee")),
    )
}
_SIGNATURE = re.compile(r"[0-9a-f]{128}")


class SigningKey:
    """A private key, from its file, which is made if there is none.

    Attributes:
        public: The public key.

    Raises:
        ClickException: It can't be read or made, or isn't secret.
    """

    def __init__(self, path: Path) -> None:
        made = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(_secret(path)))
        self._key = made
        self.public: PublicKey = made.public_key().public_bytes_raw().hex()

    def sign(self, text: bytes) -> str:
        signature: bytes = self._key.sign(text)
        return signature.hex()


def verified(key: PublicKey, signature: str, text: bytes) -> bool:
    """Whether a text was signed with the private key that belongs to this public one."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see the module's docstring

    if not (_KEY.fullmatch(key) and _SIGNATURE.fullmatch(signature)):
        return False
    point = bytes.fromhex(key)
    if point[:-1] + bytes([point[-1] & 0x7F]) in _SMALL_ORDER:
        return False
    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(point).verify(bytes.fromhex(signature), text)
    except (InvalidSignature, ValueError):  # or no such point
        return False
    return True


def public_key(named: str) -> PublicKey:
    """Get a public key that a user has named: itself, or a file that holds it."""
    if _KEY.fullmatch(named):
        return named
    try:
        with Path(named).open(encoding="ascii") as file:
            text = file.read(1000).strip()
    except (OSError, ValueError):
        text = ""
    if not _KEY.fullmatch(text):
        raise click.UsageError(f"--key {named}: that is neither 64 hexadecimal digits nor a file that holds them.")
    return text


def check_installed() -> None:
    """Raise `ClickException` if receipts can't be signed here."""
    _ed25519()


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - see the module's docstring
    except ImportError:
        raise click.ClickException(
            "Receipts need the package cryptography: pip install 'toolpack-server[receipts]'."
        ) from None
    return ed25519


def _secret(path: Path) -> str:
    try:
        if not path.exists():
            create_key(path)
        with path.open(encoding="ascii", errors="replace") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(1000).strip()
    except OSError as error:
        raise click.ClickException(f"The key {path} can't be read or made: {error.strerror}.") from None
    if mode & 0o077:
        raise click.ClickException(
            f"Others can read the key {path}, and sign as you: `chmod 600` it, or sign with another --sign-key."
        )
    if not _KEY.fullmatch(text):
        raise click.ClickException(f"The key {path} doesn't hold 64 hexadecimal digits: give another --sign-key.")
    return text
