"""All sessions of a run: found as they appear, and played at once.

A session is played by a task of its own, which waits without a thread. What one session meets ends only its
own part, unless the program must be started in another way.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from toolpack_server.client import AsyncClient, Session
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.user.model import Model
from toolpack_server.user.position import ANSWERED, LEFT, View
from toolpack_server.user.player import Player
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

LOOK_SECONDS = 1.0  # between two looks for new sessions
_AT_ONCE = 1000
_CONSOLE = "console"  # the label of sessions that the console has made, to look at others


def installed_kinds() -> RecordKinds:
    """Get the kinds of records that the installed features know."""
    return all_record_kinds(load_features())


class Run:
    """A participant in all sessions of a run.

    Args:
        labels: Those that the sessions of the run have.
        name: The participant; sessions without it are left alone.
        sessions: How many to wait for; None: until all that there are have ended.
        tell: Called with a line for each part that has failed.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        name: str,
        model: Model,
        view: View,
        sessions: int | None,
        tell: Callable[[str], None],
    ) -> None:
        self._labels = labels
        self._name = name
        self._model = model
        self._view = view
        self._sessions = sessions or 1
        self._tell = tell
        self._found: set[str] = set()
        self._ended = Counter[str]()

    async def play(self, url: str, token: str | None) -> None:
        """Play until the run is over.

        Raises:
            ValueError: The URL is none.
            ClientError: The server doesn't answer, or refuses to list sessions.
            ClickException: The program must be started in another way.
        """
        playing: set[asyncio.Task[None]] = set()
        async with AsyncClient(url, token=token) as client:
            try:
                while playing or self._ended.total() < self._sessions:
                    playing |= {asyncio.create_task(self._play(client, session)) for session in await self._new(client)}
                    if not playing:
                        await asyncio.sleep(LOOK_SECONDS)
                        continue
                    done, playing = await asyncio.wait(playing, timeout=LOOK_SECONDS)
                    for task in done:
                        task.result()
            finally:
                for task in playing:
                    task.cancel()
                await asyncio.gather(*playing, return_exceptions=True)
                await self._model.close()

    async def _new(self, client: AsyncClient) -> list[Session]:
        """Get the sessions of the run that weren't there before."""
        found: list[Session] = []
        after = ""
        while page := await client.list_sessions(labels=self._labels, after=after, limit=_AT_ONCE):
            found += [session for session in page if self._is_wanted(session)]
            after = page[-1]["session_id"]
        self._found |= {session["session_id"] for session in found}
        return found

    def _is_wanted(self, session: Session) -> bool:
        participants: Any = session.get("participants") or {}
        is_asked_for = _CONSOLE not in session["labels"] or _CONSOLE in self._labels
        return is_asked_for and self._name in participants and session["session_id"] not in self._found

    async def _play(self, client: AsyncClient, session: Session) -> None:
        how = await Player(client, session, self._name, self._model, self._view).play()
        self._ended[how] += 1
        if how not in {ANSWERED, LEFT}:
            self._tell(f"{session['session_id']}: {how}")

    def summary(self) -> str:
        """Say how many sessions were played, and how they have ended."""
        counts = ", ".join(f"{count} {how}" for how, count in self._ended.most_common())
        return f"{self._ended.total()} sessions played: {counts or 'none has ended'}."

    @property
    def is_failed(self) -> bool:
        """Whether a part has ended otherwise than by a last word."""
        return bool(self._ended.keys() - {ANSWERED, LEFT})
