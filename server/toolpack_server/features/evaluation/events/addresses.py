"""Address hook for sessions with events: it determines which functions a participant can see and call.

It removes the functions of events and conditions, which only the world calls, and adds `wait` and `get_time`.
"""

from dataclasses import replace
from functools import lru_cache

from typing_extensions import override

from toolpack_server.features.evaluation.events.creation_hook import HIDDEN
from toolpack_server.features.evaluation.events.hook import MAX_CACHED, EventHook, full_name
from toolpack_server.features.evaluation.events.world import GET_TIME, WAIT
from toolpack_server.features.evaluation.events.world import NAME as WORLD_PACK
from toolpack_server.packs.pack_function import is_offered
from toolpack_server.rpc.method import App
from toolpack_server.sessions.addresses import Address, AddressHook, View
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.stores.base import Head, StoredSession


class EventAddresses(AddressHook):
    """Hides the functions of events and conditions, and functions that a rule has withdrawn or not yet offered."""

    of_option = HIDDEN

    def __init__(self, app: App) -> None:
        self._hook = app.feature(EventHook)
        self._functions = lru_cache(maxsize=MAX_CACHED)(self._visible)

    @override
    def fill(self, session: StoredSession, address: Address) -> Address:
        recipe = Recipe.of(session)
        hidden = frozenset(recipe.feature_options[HIDDEN])
        return replace(address, functions=self._functions(recipe.toolpacks, hidden, address.functions))

    def _visible(
        self, toolpacks: tuple[str, ...], hidden: frozenset[str], offered: frozenset[str] | None
    ) -> frozenset[str]:
        """Return the full names of the functions that an address can call, always including `wait` and `get_time`."""
        functions = self._hook.names(toolpacks).functions.values()
        names = {
            full_name(function)
            for function in functions
            if (offered is None or is_offered(function, offered)) and full_name(function) not in hidden
        }
        always = {f"{WORLD_PACK}.{WAIT}", f"{WORLD_PACK}.{GET_TIME}"} if WORLD_PACK in toolpacks else set()
        return frozenset(names | always)

    @override
    def view(self, session: StoredSession, head: Head, name: str) -> View | None:
        return self._hook.view(session, head) if self._hook.concerns(session) else None
