"""The command `toolpack-server` for tests: in a separate process, or faster in this one."""

import contextlib
import io
import logging
import os
import pty
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import server_process
import serving
import warm
from click.testing import CliRunner

from toolpack_server.cli import cli, main


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    command = server_process.command(*map(str, arguments))
    streams: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.Warm(command, env=server_process.environment(**variables), text=True, **streams) as process:
        try:
            printed = process.communicate(timeout=serving.PATIENCE)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, *printed)


def on_a_terminal(*arguments: object, status: int = 0) -> str:
    """Run a command on a terminal, and return its output."""
    return _on_a_terminal("stdout", *arguments, status=status)[0]


def with_errors_on_a_terminal(*arguments: object, status: int = 0) -> tuple[str, str]:
    """Run a command with only standard error on a terminal, and return both outputs."""
    return _on_a_terminal("stderr", *arguments, status=status)


def _on_a_terminal(stream: str, *arguments: object, status: int) -> tuple[str, str]:
    terminal, end = pty.openpty()
    with tempfile.TemporaryFile() as other:
        try:
            streams: Any = {"stdout": other if stream == "stderr" else end, stream: end}
            process = warm.Warm(
                server_process.command(*map(str, arguments)), env=server_process.environment(COLUMNS="60"), **streams
            )
            os.close(end)
            text = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while chunk := os.read(terminal, 65536):
                    text += chunk
            assert process.wait(serving.PATIENCE) == status, text
        finally:
            os.close(terminal)
        other.seek(0)
        return text.decode().replace("\r\n", "\n"), other.read().decode()


@contextlib.contextmanager
def logging_kept() -> Iterator[None]:
    """Restore Python's logging afterwards, because a command configures it for its whole process."""
    root, names = logging.getLogger(), ("uvicorn", "asyncio")
    handlers, level = [*root.handlers], root.level
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in names:
            logging.getLogger(name).setLevel(levels[name])
        logging.captureWarnings(capture=False)


def run_here(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, as if in a separate one. It must not start a server."""
    words = ["toolpack-server", *map(str, arguments)]
    out, error, status = io.StringIO(), io.StringIO(), 0
    with (
        logging_kept(),
        mock.patch("sys.argv", words),
        mock.patch.dict(os.environ, server_process.environment(**variables), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(words, status, out.getvalue(), error.getvalue())


def invoke(*arguments: object, **options: Any) -> Any:
    """Run the command in this process with click's test runner, and return its result."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], **options)
