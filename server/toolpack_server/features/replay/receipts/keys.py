"""Keys that sign receipts: Ed25519 (RFC 8032), each as 64 hexadecimal digits.

The private key is in a file that only its user can read. The file is created when it is first needed. A public key is
short, so people compare it directly, without a fingerprint. The package `cryptography` is optional, so it is imported
when a key is first used.
"""

import os
import re
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.secret_key import create_key

PublicKey = str
"""A public key as 64 hexadecimal digits."""

_KEY = re.compile(r"[0-9a-f]{64}")
_SMALL_ORDER = {  # keys that allow forged signatures, without the sign bit (the highest of the 256 bits)
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
    """The private key in a file. If the file is missing, it is created with a new key.

    Attributes:
        public: The public key.

    Raises:
        ClickException: The file can't be read or created, or other users can read it.
    """

    def __init__(self, path: Path) -> None:
        self._key = key = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(_secret(path)))
        self.public: PublicKey = key.public_key().public_bytes_raw().hex()

    def sign(self, text: bytes) -> str:
        """Return the signature of `text`, as 128 hexadecimal digits."""
        signature: bytes = self._key.sign(text)
        return signature.hex()


def is_valid_signature(key: PublicKey, signature: str, text: bytes) -> bool:
    """Return whether `text` was signed with the private key that belongs to this public key."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see the module's docstring

    if not (_KEY.fullmatch(key) and _SIGNATURE.fullmatch(signature)):
        return False
    point = bytes.fromhex(key)
    if point[:-1] + bytes([point[-1] & 0x7F]) in _SMALL_ORDER:
        return False
    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(point).verify(bytes.fromhex(signature), text)
    except (InvalidSignature, ValueError):  # a `ValueError` means that the key isn't a point on the curve
        return False
    return True


def public_key(value: str) -> PublicKey:
    """Return the public key for the value of `--key`: the key itself, or the path of a file with it.

    Raises:
        UsageError: The value is neither.
    """
    if _KEY.fullmatch(value):
        return value
    try:
        with Path(value).open(encoding="ascii") as file:
            text = file.read(1000).strip()
    except (OSError, ValueError):
        text = ""
    if not _KEY.fullmatch(text):
        raise click.UsageError(f"--key {value} is neither a key, 64 hexadecimal digits, nor a file with a key.")
    return text


def check_installed() -> None:
    """Check that the package for signatures is installed.

    Raises:
        ClickException: The package is missing.
    """
    _ed25519()


def _ed25519() -> Any:
    """Return the module for Ed25519. Raise `ClickException` if the package `cryptography` isn't installed."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - see the module's docstring
    except ImportError:
        raise click.ClickException(
            "Receipts need the package cryptography: pip install 'toolpack-server[receipts]'."
        ) from None
    return ed25519


def _secret(path: Path) -> str:
    """Return the private key in a file. Create a key if the file doesn't exist."""
    try:
        if not path.exists():
            create_key(path)
        with path.open(encoding="ascii", errors="replace") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(1000).strip()
    except OSError as error:
        raise click.ClickException(f"The key file {path} can't be read or created: {error.strerror}.") from None
    if mode & 0o077:
        raise click.ClickException(
            f"Other users can read the key file {path}, and could sign as you: run `chmod 600` on it, or give another "
            "--sign-key."
        )
    if not _KEY.fullmatch(text):
        raise click.ClickException(f"The key file {path} doesn't have 64 hexadecimal digits: give another --sign-key.")
    return text
