"""The secret key of the hash on stored snapshots; whoever has it can forge snapshots.

The rule: it is a setting, or it is created once in the data directory, readable only by the server's user. It is never
written to a store or a log.
"""

import contextlib
import os
import secrets

from server.errors import SettingsError
from server.settings import Settings


def secret_key(settings: Settings) -> bytes:
    """Get the key: the setting, a file in the data directory, or a random one for a memory store.

    Raises:
        SettingsError: There is none, and none can be created.
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
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            # Written to a temporary file and linked into place, so that nobody reads half a key.
            temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            try:
                path.hardlink_to(temporary)
            finally:
                temporary.unlink()
        return path.read_text().strip().encode()
    except OSError as error:
        raise SettingsError(
            f"The key in the data directory can't be read or created: {error.strerror}. Set TOOLPACK_SECRET_KEY."
        ) from error
