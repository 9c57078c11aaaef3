"""The JSON-RPC methods that run a session again.

The rule: as in `methods`: every operation gets the caller's owner, which must own the session.
"""

from typing import Any

from server.rpc.methods import Caller, Method
from server.rpc.parameters import ReplaySession
from server.sessions.replay import Replays


class ReplayMethods:
    """The methods that run a session again.

    Args:
        replays: Does it.
    """

    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    def all(self) -> list[Method]:
        """Get the methods of `/rpc`."""
        return [Method("replay_session", ReplaySession, self.replay_session)]

    async def replay_session(self, caller: Caller, params: ReplaySession) -> Any:
        """See `ReplaySession`."""
        return await self._replays.replay(params.session_id, caller.owner, params.limit, params.labels)
