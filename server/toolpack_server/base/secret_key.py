"""Secret key for the HMAC on stored snapshots. A program that knows the key can forge snapshots.

The key is a setting, or a file in the data directory that only the server's user can read. The server creates the file
once. It refuses a file that is damaged or that other users can read. The key is never written to a store or a log.
"""

import codecs
import contextlib
import os
import re
import secrets
from pathlib import Path

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings

KEY = re.compile(r"[0-9A-Fa-f]{32,}")


def secret_key(settings: Settings) -> bytes:
    """Return the key: the setting, the content of the file, or a random key for a memory store.

    Raises:
        SettingsError: The key can't be read or created, or it isn't secret.
    """
    if settings.secret_key is not None:
        return settings.secret_key.get_secret_value().encode()
    url = settings.store_url
    if not url.persistent:
        return secrets.token_bytes(32)
    if url.shared:
        raise SettingsError(
            "Servers that share a store need the same key: set TOOLPACK_SECRET_KEY to 32 or more random characters, "
            "for example the output of `openssl rand -hex 32`."
        )
    path = settings.data_dir / "secret.key"
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
    except NotADirectoryError as error:
        raise SettingsError(
            f"The data directory {settings.data_dir} is not a folder: choose another --data-dir."
        ) from error
    except OSError as error:
        raise SettingsError(
            f"The key {path} can't be read: {error.strerror}. Let the server's user read it, because stored sessions "
            "can't be read with another key."
        ) from error
    try:
        create_key(path)
        return _read(path)
    except OSError as error:
        raise SettingsError(
            f"The key {path} can't be created: {error.strerror}. Make room, or choose another --data-dir."
        ) from error


def _read(path: Path) -> bytes:
    """Return the key in a file. Raise `SettingsError` if the file is damaged or other users can read it."""
    with path.open("rb") as file:
        mode, content = os.fstat(file.fileno()).st_mode, file.read()
    if mode & 0o077:
        raise SettingsError(
            "Other users of this machine can read or replace the key in the data directory. If it is still secret, run "
            "`chmod 600 secret.key` there. If not, delete it and all stored sessions."
        )
    key = content.removeprefix(codecs.BOM_UTF8).decode("ascii", "replace").strip()
    if not KEY.fullmatch(key):
        raise SettingsError(
            "The file secret.key in the data directory must have 32 or more hexadecimal digits: restore it from a "
            "copy. Without it, stored sessions can't be read. If there are none, delete the file: the server creates a "
            "new key."
        )
    return key.encode()


def create_key(path: Path) -> None:
    """Create the file with a random key, unless another process has created the file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The key is written to a temporary file, then linked to its path, so that no process reads an incomplete key.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink()
