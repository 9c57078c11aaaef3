"""Option `--receipt FILE` of `evaluate`, which writes the evaluated sessions as a signed receipt.

The receipt contains all sessions that the report counts. If one of them can't be in a receipt, none is written.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import click

from toolpack_server.base.settings import load_settings
from toolpack_server.base.terminal import echo
from toolpack_server.base.times import timestamp
from toolpack_server.cli.requests import Send
from toolpack_server.features.replay.receipts.entries import create_entry
from toolpack_server.features.replay.receipts.keys import SigningKey
from toolpack_server.features.replay.receipts.receipt import MAX_BYTES, ReceiptEntry, Times, write
from toolpack_server.features.replay.results import Code

KEY_FILE = "receipt.key"  # name of the key's default file, in the data directory


class ReceiptWriter:
    """Collects the evaluated sessions, and writes the receipt at the end."""

    options = (
        click.Option(
            ["--receipt"],
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Write a signed receipt of these sessions to this file. `verify` runs them again.",
        ),
        click.Option(
            ["--sign-key"],
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="File of the key that signs it, created if it doesn't exist.  "
            f"[default: {KEY_FILE} in the data directory]",
        ),
    )

    @classmethod
    def begin(cls, options: dict[str, Any]) -> Self | None:
        """Remove the receipt's options from `options`, and return the writer, or None without `--receipt`."""
        path, key = options.pop("receipt"), options.pop("sign_key")
        if path is None:
            if key is not None:
                raise click.UsageError("--sign-key signs a receipt: also give --receipt.")
            return None
        folder = load_settings(data_dir=options["data_dir"]).data_dir
        return cls(path, SigningKey(key or folder / KEY_FILE))

    def __init__(self, path: Path, key: SigningKey) -> None:
        self._path = path
        self._key = key
        self._sessions: list[tuple[ReceiptEntry, list[Times]]] = []
        self._size = 0
        self._code: Code | None = None

    async def add(self, send: Send, summary: Mapping[str, Any]) -> None:
        """Add an evaluated session.

        Raises:
            ClickException: The session can't be in a receipt, the server's code changed, or the receipt is too large.
        """
        entry, times, code = await create_entry(send, summary)
        if self._code is None:
            self._code = code
        if {**code, "toolpacks": {}} != {**self._code, "toolpacks": {}}:
            raise click.ClickException("The server's code or Python changed during the evaluation: evaluate again.")
        self._code["toolpacks"] |= code["toolpacks"]
        self._sessions.append((entry, times))
        self._size += len(entry.sort_key[-1])
        if self._size > MAX_BYTES:
            raise click.ClickException(
                f"The receipt has more than {MAX_BYTES} bytes: choose fewer sessions with --label."
            )

    def end(self) -> None:
        """Write the receipt, and print its key. Raise `ClickException` if there are no sessions."""
        if self._code is None:
            raise click.ClickException("There are no sessions for a receipt: choose others with --label.")
        text = write(self._code, self._sessions, timestamp(time.time()), self._key)
        try:
            self._path.write_bytes(text)
        except OSError as error:
            raise click.ClickException(f"{self._path} can't be written: {error.strerror}.") from None
        count = len(self._sessions)
        echo("", f"Receipt of {count} session{'' if count == 1 else 's'}, signed with key {self._key.public}", err=True)
