"""The key of the hash on stored snapshots: who has it can write what the server will read.

The rule: it is a setting, or it is made once in the data directory, readable by the server's user alone; it never
goes into a store or a log.
"""

import contextlib
import os
import secrets

from server.errors import SettingsError
from server.settings import Settings


def secret_key(settings: Settings) -> bytes:
    """Get the key of the hash on stored snapshots: the setting, or one kept in the data directory.

    Raises:
        SettingsError: There is none, and none can be made.
    """
    if settings.secret_key is not None:
        return settings.secret_key.get_secret_value().encode()
    url = settings.store_url
    if url.startswith("memory:"):
        return secrets.token_bytes(32)
    if url.startswith("redis"):
        raise SettingsError(
            "Servers that share a Redis need the same key: set TOOLPACK_SECRET_KEY to 32 or more random characters, "
            "for example the output of `openssl rand -hex 32`."
        )
    path = settings.data_dir / "secret.key"
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            # Written aside and linked into place: whoever sees the file sees all of it.
            aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            try:
                path.hardlink_to(aside)
            finally:
                aside.unlink()
        return path.read_text().strip().encode()
    except OSError as error:
        raise SettingsError(
            f"The key in the data directory can't be read or made: {error.strerror}. Set TOOLPACK_SECRET_KEY."
        ) from error
