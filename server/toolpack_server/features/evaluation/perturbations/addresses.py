"""Address hook that renames, hides or redescribes functions for the agent of a session with perturbation rules."""

from typing_extensions import override

from toolpack_server.features.evaluation.perturbations.hook import PerturbationHook
from toolpack_server.protocol.senders import AGENT
from toolpack_server.rpc.method import App
from toolpack_server.sessions.addresses import AddressHook, View
from toolpack_server.stores.base import Head, StoredSession


class PerturbedAddresses(AddressHook):
    """Changes the agent's list of functions according to the session's rules."""

    def __init__(self, app: App) -> None:
        self._hook = app.feature(PerturbationHook)

    @override
    def view(self, session: StoredSession, head: Head, name: str) -> View | None:
        has_rules = name == AGENT and self._hook.concerns(session)
        return self._hook.view(session, head) if has_rules else None
