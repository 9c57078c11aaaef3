"""Lists of the server's functions and toolpacks, as JSON.

A list that many sessions share is cached as JSON, in a cache of limited size. An agent sees only the functions of its
address.
"""

from toolpack_server.base.cache import BoundedCache
from toolpack_server.jsonio.strict import Fragment, dumps
from toolpack_server.packs.formats import FORMATS, describe_toolpack
from toolpack_server.rpc.caller import Caller
from toolpack_server.sessions.manager import SessionManager

MAX_CACHE_BYTES = 8 * 2**20


class Listings:
    """Lists of functions and toolpacks, with a cache."""

    def __init__(self, sessions: SessionManager) -> None:
        self._sessions = sessions
        # Clients choose the order of a session's toolpacks, so the number of different lists is unlimited.
        self._cache = BoundedCache[tuple[tuple[str, ...], str, bool], bytes](MAX_CACHE_BYTES, len)
        self._toolpacks: Fragment | None = None

    async def functions(self, caller: Caller, session_id: str | None, form: str) -> bytes:
        """Return the functions of a session as JSON in a format. Without a session, return all loaded functions.

        An agent gets only the functions of its address.

        Raises:
            RequestError: The session doesn't exist.
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
        """Return the functions of toolpacks as JSON.

        Args:
            in_session: Use the names that the functions have in a session with these toolpacks, not the registered
                names.
        """
        cached = self._cache.get((toolpacks, form, in_session))
        if cached is not None:
            return cached
        catalog = self._sessions.catalog
        functions = catalog.listed(toolpacks) if in_session else catalog.registered(toolpacks)
        return self._cache.setdefault((toolpacks, form, in_session), dumps([*map(FORMATS[form], functions)]))

    async def toolpacks(self, owner: str) -> Fragment:
        """Return the descriptions of all toolpacks as JSON."""
        catalog = self._sessions.catalog
        if self._toolpacks is None:  # computed in a thread, because a toolpack might load its tasks now

            def describe_all() -> bytes:
                return dumps(
                    [describe_toolpack(pack, catalog.sources.get(pack.name)) for pack in catalog.toolpacks.values()]
                )

            self._toolpacks = Fragment(await self._sessions.compute(describe_all, owner, "toolpacks"))
        return self._toolpacks
