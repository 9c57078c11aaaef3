"""Player of one participant in one session. It reads the records and takes the next action, until the part is over.

An action is a message, a call or an answer. Its `call_id` contains its number, so a restarted program does nothing
twice. If the server refuses an action because another program took it, the player reads the records again.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from toolpack_server.base.errors import ReplyError
from toolpack_server.client import AsyncClient, Session
from toolpack_server.client.exchange import is_unusable
from toolpack_server.user.model import Answer, Model, ModelError
from toolpack_server.user.position import Position, View

WAIT_SECONDS = 30.0  # the longest wait that `listen` accepts
PAUSE_SECONDS = 1.0  # after a `listen` that ended early because the server stops or another program also listens
_PAGE = 1000  # records in one page
_NOT_FOUND, _INVALID_PARAMS, _CALL_ID_REUSED, _ANSWERED = -32001, -32602, -32009, -32014


class Player:
    """A participant in a session.

    Args:
        client: The client for the server.
        session: The session, as in a list of sessions.
        name: The participant.
        model: Decides what the participant does.
        view: The participant's view; the player fills in `task`.
    """

    def __init__(self, client: AsyncClient, session: Session, name: str, model: Model, view: View) -> None:
        self._client = client
        self._id = session["session_id"]
        self._is_fork = "parent" in session
        self._name = name
        self._model = model
        self._view = view
        address = {**session, **cast("Any", session)["participants"][name]}
        self._agent = client.agent(cast("Session", address))
        self._own: list[Any] = []  # all records of the session itself that were read
        self._last_done = -1  # `Position.done` before the previous action
        self._unrecorded = 0  # number of the latest actions in a row that left no record
        self._envelope: Any = None  # the outcome of the last call

    async def play(self) -> str:
        """Play until the participant's part is over. Return how it ended, as a word or phrase for the summary.

        Raises:
            NoReplyError: The server doesn't answer.
            ClickException: The command's options are wrong.
        """
        try:
            self._view = self._view._replace(task=cast("Any", await self._agent.get_task()))
            tools = cast("Any", await self._agent.list_functions(format="openai"))["result"]
            while not (position := await self._read_position()).over:
                try:
                    await self._do_next(position, tools)
                except ReplyError as error:
                    if error.code not in {_CALL_ID_REUSED, _ANSWERED}:  # another program took the action or answered
                        raise
        except ReplyError as error:
            return "closed" if error.code == _NOT_FOUND else f"refused ({error.message})"
        return position.over

    async def _read_position(self) -> Position:
        """Read the records that are new, and return the participant's position.

        In a fork or after a reset, the history differs from the session's own records, so the history is also read.
        """
        self._own += await self._records(len(self._own) - 1, path=False)
        kinds = self._view.kinds
        went_back = any(kinds[record["kind"]].goes_back_to(record) is not None for record in self._own)
        path = await self._records(-1, path=True) if self._is_fork or went_back else self._own
        return self._view.position(path, self._own)

    async def _records(self, after: int, *, path: bool) -> list[Any]:
        """Return the records after an index: the session's own records, or with `path` those of its history."""
        records: list[Any] = []
        while True:
            page = await self._client.get_trace(self._id, after=after + len(records), limit=_PAGE, path=path)
            records += page
            if len(page) < _PAGE:
                return records

    async def _do_next(self, position: Position, tools: Sequence[Any]) -> None:
        """Listen if it isn't the participant's turn. Else let the model decide, and take the action of its answer.

        At a limit, the participant fails instead.
        """
        if not position.is_next:
            await self._listen(position)
            return
        if position.limit is not None:
            await self._fail(position, *position.limit)
            return
        self._unrecorded = self._unrecorded + 1 if position.done == self._last_done else 0
        self._last_done = position.done
        if self._unrecorded >= self._view.limits.mistakes:  # for example calls that crash the worker
            message = f"{self._unrecorded} actions in a row left no record. The last answer was: {self._envelope}"
            await self._fail(position, "unrecorded", message)
            return
        offered = tools if position.may_call else ()
        try:
            answer = await self._model.answer(position.messages, offered, position.turn)
        except ModelError as error:
            await self._fail(position, error.reason, str(error))
            return
        if answer.calls and not position.may_call:
            answer = answer._replace(problem="You have no calls left.")
        if answer.metadata or answer.problem:  # the next position needs the tokens and the problem
            problem = answer.problem
            await self._client.add_turn(self._id, self._name, metadata=answer.metadata, problem=problem)
        if answer.problem is None:
            await self._act(position, answer)

    async def _act(self, position: Position, answer: Answer) -> None:
        """Make the calls of an answer, at most as many as turns are left. If it has no calls, say its text.

        If the server refuses the content, for example because it is too large, the participant fails.
        """
        try:
            left = self._view.limits.turns - position.turn
            # With the action's number as its call_id, the server runs an action once, even if it is sent again.
            for number, call in enumerate(answer.calls[:left], position.done):
                self._envelope = await self._agent.run_function(
                    call.function, json.dumps(call.kwargs), call_id=f"turn-{number}"
                )
            if not answer.calls:
                await self._say(answer.text, f"turn-{position.done}")
        except ReplyError as error:
            if not is_unusable(error):
                raise
            await self._fail(position, "nonsense", f"{error.message}: {error.data.get('detail', '')}".rstrip(": "))

    async def _say(self, text: str, call_id: str) -> None:
        """Send a message. If it ends the part and this participant can answer, submit it as the answer instead."""
        if self._view.stops(text):
            try:
                await self._agent.submit_answer(text, call_id=call_id)
            except ReplyError as error:
                if error.code != _INVALID_PARAMS:  # this code means that only another participant can answer
                    raise
            else:
                return
        await self._agent.say(text, call_id=call_id)

    async def _listen(self, position: Position) -> None:
        """Wait for a message, at most `WAIT_SECONDS`. The caller then reads the message with the other new records."""
        start = asyncio.get_running_loop().time()
        try:
            reply = await self._agent.listen(after=position.heard, wait_seconds=WAIT_SECONDS)
        except ReplyError as error:
            if error.code != _INVALID_PARAMS:  # fewer messages exist, because the session was reset
                raise
            return
        if not reply["messages"] and not reply["done"] and asyncio.get_running_loop().time() < start + WAIT_SECONDS:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _fail(self, position: Position, reason: str, message: str) -> None:
        """Report that the participant failed. This ends the session for all, and makes its verdicts invalid."""
        call_id = f"{self._name}-failed-{position.done}"
        await self._client.fail_participant(self._id, self._name, reason, message=message, call_id=call_id)
