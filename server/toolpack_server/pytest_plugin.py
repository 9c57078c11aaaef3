"""Pytest plugin: the option `--pack-dir` and the fixture `toolpack_session`.

Pytest loads this module in every project where Toolpack Server is installed. So it imports the server only when a
test uses the fixture.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--pack-dir`, and `pack_dir` for pytest's configuration file."""
    text = "Folder with toolpacks, which tests import as `toolpacks.<module>`; may be repeated."
    parser.getgroup("toolpack-server").addoption("--pack-dir", action="append", type=Path, default=[], help=text)
    parser.addini("pack_dir", text, type="paths", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Make the modules of the pack folders importable, as the server does."""
    folders = config.getoption("--pack-dir") or config.getini("pack_dir")
    if not folders:
        return
    from toolpack_server.base.errors import RegistrationError  # noqa: PLC0415 - see above
    from toolpack_server.testing import add_pack_dir  # noqa: PLC0415

    try:
        add_pack_dir(*folders)
    except RegistrationError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def toolpack_session() -> Iterator[Callable[..., Any]]:
    """Return a function that opens a `toolpack_server.testing.Session`. The end of the test closes the session."""
    from toolpack_server.testing import Session  # noqa: PLC0415 - see above

    with contextlib.ExitStack() as opened:

        def open_session(*toolpacks: Any, **options: Any) -> Session:
            return opened.enter_context(Session(*toolpacks, **options))

        yield open_session
