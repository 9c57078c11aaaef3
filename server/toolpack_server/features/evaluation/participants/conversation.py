"""What participants say to each other: said, heard, and waited for.

A participant hears what it has said and was told itself, on the session's path, and nothing that tells of
others: the index of a message counts only these.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.evaluation.episodes.messages import ALONE, SayOperation
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.participants.message_waiters import MessageWaiters
from toolpack_server.features.evaluation.participants.results import HeardMessage, HeardMessages
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.rpc.method import App
from toolpack_server.sessions.paths import PathMessage
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.stores.base import Head, StoredSession
from toolpack_server.stores.history import fitting

FIRST_PAUSE_SECONDS = 0.05  # between two looks at a store that other workers share; then it doubles
LONGEST_PAUSE_SECONDS = 1.0


class _Found(NamedTuple):
    """What there is of a conversation for one participant."""

    session: StoredSession
    last: int  # the index of the session's last record
    new: Sequence[PathMessage]  # what was said after the message that it has
    done: bool

    def is_answer(self, name: str) -> bool:
        """Whether it needs to be told at once."""
        return self.done or any(said.by != name for said in self.new)


class Conversation:
    """Lets participants talk.

    Attributes:
        waits: Those that listen.
    """

    def __init__(self, app: App) -> None:
        self.waits = app.feature(MessageWaiters)
        self._context = app.context
        self._sessions = app.sessions
        self._episodes = app.feature(Episodes)
        self._max_bytes = app.settings.max_list_bytes

    async def say(self, session_id: str, owner: str, by: str, text: str, to: str | None, call_id: str | None) -> bool:
        """Record what a participant says to another one, or to all others.

        Raises:
            InvalidParamsError: There is no such other.
            AnsweredError: The answer has been submitted.
            TooLargeError: The text is too long.
        """
        operation = SayOperation(self._context, session_id, owner, text, call_id, by=by, to=to)
        return bool(await self._sessions.run(operation))

    async def listen(self, session_id: str, owner: str, name: str, after: int, wait_seconds: float) -> HeardMessages:
        """Get what a participant has said and was told after a message.

        Waits until another one has said something, or all is done.

        Raises:
            InvalidParamsError: There is no other participant, or no such message.
            SessionNotFoundError: The session has ended.
        """
        read, loop = self._sessions.read, asyncio.get_running_loop()
        ends, pause = loop.time() + wait_seconds, FIRST_PAUSE_SECONDS
        with self.waits.one(session_id, name) as wait:  # before the first look, so that nothing is missed
            found = await read(lambda reader: self._found(*reader.find(session_id, owner), name, after))
            while not (found.is_answer(name) or wait.is_over or loop.time() >= ends):
                # Looked at often enough to keep the session alive.
                left = min(ends - loop.time(), found.session.ttl_seconds / 2)
                await wait.until_woken(min(left, pause) if self._context.store.shared else left)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                found = await read(partial(self._again, found, name, after))
        return await read(lambda _: self._heard(found, after))

    def _again(self, found: _Found, name: str, after: int, reader: SessionReader) -> _Found:
        """Look again, which renews the session; if there is no new record, it is as it was."""
        _, head = reader.find(found.session.id, found.session.owner)
        return found if head.index == found.last else self._found(found.session, head, name, after)

    def _found(self, session: StoredSession, head: Head, name: str, after: int) -> _Found:
        if not self._context.addresses.of(session, name).others:
            raise InvalidParamsError(ALONE)
        said = self._context.paths.said(session, head.version)
        own = [each for each in said if each.to is None or name in {each.by, each.to}]
        if after >= len(own):
            raise InvalidParamsError(
                f"You ask for what comes after message {after}, but there are {len(own)}: the session was reset. "
                "Listen again with after = -1."
            )
        done = self._episodes.stored(session, head.index).ended is not None
        return _Found(session, head.index, own[after + 1 :], done)

    def _heard(self, found: _Found, after: int) -> HeardMessages:
        shown = map(loads, self._context.paths.said_lines(found.session, found.new))
        told = (
            HeardMessage(index=index, by=each["by"], to=each.get("to"), content=each["content"])
            for index, each in enumerate(shown, after + 1)
        )
        heard = fitting(told, lambda message: len(dumps(message)), self._max_bytes)
        # Who hasn't heard all asks again, and isn't told before that nothing more comes.
        return {"messages": heard, "done": found.done and len(heard) == len(found.new)}
