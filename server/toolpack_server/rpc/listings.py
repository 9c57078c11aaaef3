"""The functions and toolpacks of a server, listed as JSON.

A list that many sessions share is written once and kept, up to a limit. An agent sees the functions that its
address has.
"""

from toolpack_server.base.cache import BoundedCache
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.packs.formats import FORMATS, described
from toolpack_server.rpc.caller import Caller
from toolpack_server.sessions.manager import SessionManager

MAX_KEPT_BYTES = 8 * 2**20


class Listings:
    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions
        # The order of its toolpacks is the client's choice, so there are more lists than can be kept.
        self._kept = BoundedCache[tuple[tuple[str, ...], str, bool], bytes](MAX_KEPT_BYTES, len)
        self._toolpacks: Fragment | None = None

    async def functions(self, caller: Caller, session_id: str | None, form: str) -> bytes:
        """Get the JSON of the functions of a session, or of all, in a format.

        Raises:
            RequestError: There is no such session.
        """
        if session_id is None:
            toolpacks = tuple(self._sessions.catalog.toolpacks)
        else:
            toolpacks = await self._sessions.toolpacks(session_id, caller.sees)
        if caller.session_id is not None:
            address = await self._sessions.address(caller.session_id, caller.owner, caller.address)
            if address.functions is not None or address.view is not None:
                listed = address.listed(self._sessions.catalog.listed(toolpacks))
                return dumps([*map(FORMATS[form], listed)])
        return self._listed(toolpacks, form, in_session=session_id is not None)

    def _listed(self, toolpacks: tuple[str, ...], form: str, *, in_session: bool) -> bytes:
        """Get the JSON of toolpacks' functions: as they are called in a session, or else as they are registered."""
        kept = self._kept.get((toolpacks, form, in_session))
        if kept is not None:
            return kept
        catalog = self._sessions.catalog
        functions = catalog.listed(toolpacks) if in_session else catalog.registered(toolpacks)
        return self._kept.setdefault((toolpacks, form, in_session), dumps([*map(FORMATS[form], functions)]))

    async def toolpacks(self, owner: str) -> Fragment:
        catalog = self._sessions.catalog
        if self._toolpacks is None:  # in a thread, as toolpacks may have to load their tasks

            def listed() -> bytes:
                return dumps([described(pack, catalog.sources.get(pack.name)) for pack in catalog.toolpacks.values()])

            self._toolpacks = Fragment(await self._sessions.compute(listed, owner, "toolpacks"))
        return self._toolpacks
