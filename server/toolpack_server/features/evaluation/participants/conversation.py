"""Conversation between a session's participants: send messages, read messages, and wait for messages.

A participant sees only messages that it sent or received. A message's index counts only the messages that the
participant sees, so that it doesn't reveal other messages.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.evaluation.episodes.messages import NO_OTHERS, SayOperation
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.features.evaluation.participants.message_waiters import MessageWaiters
from toolpack_server.features.evaluation.participants.results import HeardMessage, HeardMessages
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.rpc.method import App
from toolpack_server.sessions.paths import PathMessage
from toolpack_server.sessions.reader import SessionReader
from toolpack_server.stores.base import Head, StoredSession
from toolpack_server.stores.history import fitting

# Another worker can add a message to a shared store without waking the waiters of this worker. So `listen` polls it.
FIRST_POLL_SECONDS = 0.05  # first delay between two reads; it doubles each time
MAX_POLL_SECONDS = 1.0  # max delay


class _Inbox(NamedTuple):
    """A participant's messages after the index that `listen` got, as of one read of the session."""

    session: StoredSession
    last: int  # index of the session's last record when it was read
    new: Sequence[PathMessage]
    done: bool  # whether the session has ended

    def must_reply(self, name: str) -> bool:
        """Return whether `listen` must stop waiting: another participant sent a message, or the session has ended."""
        return self.done or any(message.by != name for message in self.new)


class Conversation:
    """Sends and reads messages of participants.

    Attributes:
        waiters: The requests that wait for messages in this worker.
    """

    def __init__(self, app: App) -> None:
        self.waiters = app.feature(MessageWaiters)
        self._context = app.context
        self._sessions = app.sessions
        self._episodes = app.feature(Episodes)
        self._max_bytes = app.settings.max_list_bytes

    async def say(self, session_id: str, owner: str, by: str, text: str, to: str | None, call_id: str | None) -> bool:
        """Record a message from the participant `by` to the participant `to`. If `to` is None, all others receive it.

        Raises:
            InvalidParamsError: The session has only one participant, or no participant is named `to`.
            AnsweredError: The session has ended.
            TooLargeError: The text is too long.
        """
        operation = SayOperation(self._context, session_id, owner, text, call_id, by=by, to=to)
        return bool(await self._sessions.run(operation))

    async def listen(self, session_id: str, owner: str, name: str, after: int, wait_seconds: float) -> HeardMessages:
        """Return the messages that a participant sent and received after the message with the index `after`.

        Wait up to `wait_seconds` for a message from another participant or for the end of the session.

        Raises:
            InvalidParamsError: The session has only one participant, or no message of it has the index `after`.
            SessionNotFoundError: The session was closed or has expired.
        """
        read, loop = self._sessions.read, asyncio.get_running_loop()
        deadline, delay = loop.time() + wait_seconds, FIRST_POLL_SECONDS
        # The waiter is registered before the first read, so that no message in between is missed.
        with self.waiters.waiter(session_id, name) as waiter:
            inbox = await read(lambda reader: self._inbox(*reader.find(session_id, owner), name, after))
            while not (inbox.must_reply(name) or waiter.is_over or loop.time() >= deadline):
                # A read renews the session's TTL, so read often enough to keep the session alive.
                left = min(deadline - loop.time(), inbox.session.ttl_seconds / 2)
                await waiter.wait(min(left, delay) if self._context.store.shared else left)
                delay = min(2 * delay, MAX_POLL_SECONDS)
                inbox = await read(partial(self._refresh, inbox, name, after))
        return await read(lambda _: self._reply(inbox, after))

    def _refresh(self, inbox: _Inbox, name: str, after: int, reader: SessionReader) -> _Inbox:
        """Read the session again, which renews its TTL. Return the same inbox if no record was added."""
        _, head = reader.find(inbox.session.id, inbox.session.owner)
        return inbox if head.index == inbox.last else self._inbox(inbox.session, head, name, after)

    def _inbox(self, session: StoredSession, head: Head, name: str, after: int) -> _Inbox:
        """Return the messages that a participant sees after an index. Their texts aren't read yet."""
        if not self._context.addresses.of(session, name).others:
            raise InvalidParamsError(NO_OTHERS)
        messages = self._context.paths.messages(session, head.version)
        own = [message for message in messages if message.to is None or name in {message.by, message.to}]
        if after >= len(own):
            raise InvalidParamsError(
                f"There is no message {after}: the number of your messages is {len(own)}. If the session was reset, "
                "listen again with after = -1."
            )
        done = self._episodes.stored(session, head.index).ended is not None
        return _Inbox(session, head.index, own[after + 1 :], done)

    def _reply(self, inbox: _Inbox, after: int) -> HeardMessages:
        """Read the texts of the messages. Return as many as fit into one response."""
        records = map(loads, self._context.paths.message_lines(inbox.session, inbox.new))
        messages = (
            HeardMessage(index=index, by=record["by"], to=record.get("to"), content=record["content"])
            for index, record in enumerate(records, after + 1)
        )
        fitted = fitting(messages, lambda message: len(dumps(message)), self._max_bytes)
        # If not all messages fit, `done` stays false, so that the participant asks for the rest.
        return {"messages": fitted, "done": inbox.done and len(fitted) == len(inbox.new)}
