"""One participant in one session: it looks at the records, and does what is next, until its part is over.

Each thing that it does has the number of its place as `call_id`, so nothing is done twice, however often this
is started. Whatever the server refuses was done by another one meanwhile: look again.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from toolpack_server.base.errors import ReplyError
from toolpack_server.client import AsyncClient, Session
from toolpack_server.client.exchange import is_unusable
from toolpack_server.user.model import Answer, Model, ModelError
from toolpack_server.user.position import Place, View

WAIT_SECONDS = 30.0  # as long as a `listen` may wait
PAUSE_SECONDS = 1.0  # after a `listen` that has ended early: the server stops, or another program listens, too
_AT_ONCE = 1000  # records
_NOT_FOUND, _WRONG, _USED, _OVER = -32001, -32602, -32009, -32014


class Player:
    """A participant in a session.

    Args:
        client: The client of the server.
        session: The session, as it is listed.
        name: The participant.
        model: Who decides what it does.
        view: How it looks at the session; `told` is asked for.
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
        self._own: list[Any] = []
        self._done = -1  # how much it had done when it last acted
        self._vain = 0  # acts since then that have left no record
        self._heard: Any = None  # what the last call was answered

    async def play(self) -> str:
        """Play until the participant's part is over, and get how it has ended.

        Raises:
            NoReplyError: The server doesn't answer.
            ClickException: The program must be started in another way.
        """
        try:
            self._view = self._view._replace(told=cast("Any", await self._agent.get_task()))
            tools = cast("Any", await self._agent.list_functions(format="openai"))["result"]
            while not (place := await self._look()).over:
                try:
                    await self._go_on(place, tools)
                except ReplyError as error:
                    if error.code not in {_USED, _OVER}:
                        raise
        except ReplyError as error:
            return "closed" if error.code == _NOT_FOUND else f"refused ({error.message})"
        return place.over

    async def _look(self) -> Place:
        self._own += await self._records(len(self._own) - 1, path=False)
        kinds = self._view.kinds
        went_back = any(kinds[record["kind"]].goes_back_to(record) is not None for record in self._own)
        path = await self._records(-1, path=True) if self._is_fork or went_back else self._own
        return self._view.place(path, self._own)

    async def _records(self, after: int, *, path: bool) -> list[Any]:
        found: list[Any] = []
        while True:
            more = await self._client.get_trace(self._id, after=after + len(found), limit=_AT_ONCE, path=path)
            found += more
            if len(more) < _AT_ONCE:
                return found

    async def _go_on(self, place: Place, tools: Sequence[Any]) -> None:
        if not place.is_next:
            await self._listen(place)
            return
        if place.limit is not None:
            await self._fail(place, *place.limit)
            return
        self._vain = self._vain + 1 if place.done == self._done else 0
        self._done = place.done
        if self._vain >= self._view.limits.mistakes:  # such as a call that has ended the server's process
            message = f"{self._vain} acts in a row have left no record. The last answer was: {self._heard}"
            await self._fail(place, "unrecorded", message)
            return
        offered = tools if place.may_call else ()
        try:
            answer = await self._model.answer(place.messages, offered, place.turn)
        except ModelError as error:
            await self._fail(place, error.reason, str(error))
            return
        if answer.calls and not place.may_call:
            answer = answer._replace(problem="All your calls are used.")
        if answer.metadata or answer.problem:
            problem = answer.problem
            await self._client.add_turn(self._id, self._name, metadata=answer.metadata, problem=problem)
        if answer.problem is None:
            await self._act(place, answer)

    async def _act(self, place: Place, answer: Answer) -> None:
        """Call, or else say something: what a model says beside its calls, nobody hears."""
        try:
            left = self._view.limits.turns - place.turn
            for number, call in enumerate(answer.calls[:left], place.done):
                self._heard = await self._agent.run_function(
                    call.function, json.dumps(call.kwargs), call_id=f"turn-{number}"
                )
            if not answer.calls:
                await self._say(answer.text, f"turn-{place.done}")
        except ReplyError as error:
            if not is_unusable(error):
                raise
            await self._fail(place, "nonsense", f"{error.message}: {error.data.get('detail', '')}".rstrip(": "))

    async def _say(self, text: str, call_id: str) -> None:
        """Say something; the last word of the participant that answers is the answer."""
        if self._view.stops(text):
            try:
                await self._agent.submit_answer(text, call_id=call_id)
            except ReplyError as error:
                if error.code != _WRONG:  # another participant answers
                    raise
            else:
                return
        await self._agent.say(text, call_id=call_id)

    async def _listen(self, place: Place) -> None:
        began = asyncio.get_running_loop().time()
        try:
            heard = await self._agent.listen(after=place.heard, wait_seconds=WAIT_SECONDS)
        except ReplyError as error:
            if error.code != _WRONG:  # there are fewer messages now: the session was reset
                raise
            return
        if not heard["messages"] and not heard["done"] and asyncio.get_running_loop().time() < began + WAIT_SECONDS:
            await asyncio.sleep(PAUSE_SECONDS)

    async def _fail(self, place: Place, reason: str, message: str) -> None:
        call_id = f"{self._name}-failed-{place.done}"
        await self._client.fail_participant(self._id, self._name, reason, message=message, call_id=call_id)
