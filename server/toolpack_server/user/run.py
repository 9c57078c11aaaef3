"""Player of one participant in all sessions of a run: it finds the sessions as they appear and plays them concurrently.

Each session is played by its own asyncio task. A failure in one session doesn't stop the others, unless the command's
options are wrong.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from toolpack_server.client import AsyncClient, Session
from toolpack_server.sessions.record_kinds import RecordKinds
from toolpack_server.user.model import Model
from toolpack_server.user.player import Player
from toolpack_server.user.position import ANSWERED, LEFT, View
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

POLL_SECONDS = 1.0  # delay between two searches for new sessions
_PAGE = 1000
_CONSOLE = "console"  # label of forks that the console creates to show other sessions


def installed_kinds() -> RecordKinds:
    """Return the kinds of records of the installed features."""
    return all_record_kinds(load_features())


class Run:
    """A participant in all sessions of a run.

    Args:
        labels: The labels that mark the run's sessions.
        name: The participant. Sessions without it are ignored.
        model: Decides what the participant does.
        view: The participant's view of a session.
        sessions: Number of sessions to play. None: the first, and all that appear before the last one ends.
        report: Called with a line of text for each session where the participant failed.
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        name: str,
        model: Model,
        view: View,
        sessions: int | None,
        report: Callable[[str], None],
    ) -> None:
        self._labels = labels
        self._name = name
        self._model = model
        self._view = view
        self._sessions = sessions or 1  # by default, the run is over once a session was played and none is being played
        self._report = report
        self._session_ids: set[str] = set()
        self._outcomes = Counter[str]()

    async def play(self, url: str, token: str | None) -> None:
        """Play until the run is over: enough sessions have ended, and no session is being played.

        Raises:
            ValueError: The URL is invalid.
            ClientError: The server doesn't answer, or refuses to list sessions.
            ClickException: The command's options are wrong.
        """
        playing: set[asyncio.Task[None]] = set()
        async with AsyncClient(url, token=token) as client:
            try:
                while playing or self._outcomes.total() < self._sessions:
                    playing |= {asyncio.create_task(self._play(client, session)) for session in await self._new(client)}
                    if not playing:
                        await asyncio.sleep(POLL_SECONDS)
                        continue
                    done, playing = await asyncio.wait(playing, timeout=POLL_SECONDS)
                    for task in done:
                        task.result()  # raises the exception of a session's task, which ends the run
            finally:
                for task in playing:
                    task.cancel()
                await asyncio.gather(*playing, return_exceptions=True)
                await self._model.close()

    async def _new(self, client: AsyncClient) -> list[Session]:
        """Return the sessions of the run that appeared since the last call."""
        sessions: list[Session] = []
        after = ""
        while page := await client.list_sessions(labels=self._labels, after=after, limit=_PAGE):
            sessions += [session for session in page if self._is_new(session)]
            after = page[-1]["session_id"]
        self._session_ids |= {session["session_id"] for session in sessions}
        return sessions

    def _is_new(self, session: Session) -> bool:
        """Return whether a listed session must be played: it has the participant, and wasn't found before."""
        participants: Any = session.get("participants") or {}
        in_run = _CONSOLE not in session["labels"] or _CONSOLE in self._labels
        return in_run and self._name in participants and session["session_id"] not in self._session_ids

    async def _play(self, client: AsyncClient, session: Session) -> None:
        outcome = await Player(client, session, self._name, self._model, self._view).play()
        self._outcomes[outcome] += 1
        if outcome not in {ANSWERED, LEFT}:
            self._report(f"{session['session_id']}: {outcome}")

    def summary(self) -> str:
        """Return a line with the number of sessions played and how they ended."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self._outcomes.most_common())
        return f"{self._outcomes.total()} sessions played: {counts or 'none has ended'}."

    @property
    def is_failed(self) -> bool:
        """Whether the participant failed in a session."""
        return bool(self._outcomes.keys() - {ANSWERED, LEFT})
