"""The pytest fixture of Toolpack Server.

The rule: pytest loads this module in every project that has Toolpack Server installed, so it imports nothing of the
server before a test asks for a session, and isn't in the package `server`, whose name a project may use itself.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def toolpack_session() -> Iterator[Callable[..., Any]]:
    """Get a function that opens a `server.testing.Session`, which is closed at the end of the test."""
    from server.testing import Session  # noqa: PLC0415 - see above

    with contextlib.ExitStack() as opened:

        def open_session(*toolpacks: Any, **options: Any) -> Session:
            return opened.enter_context(Session(*toolpacks, **options))

        yield open_session
