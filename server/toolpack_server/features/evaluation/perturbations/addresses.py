"""Functions as the agent of a perturbed session sees them: the rules of a session may rename or hide some."""

from typing_extensions import override

from toolpack_server.features.evaluation.perturbations.hook import PerturbationHook
from toolpack_server.protocol.senders import AGENT
from toolpack_server.rpc.method import App
from toolpack_server.sessions.addresses import AddressHook, View
from toolpack_server.stores.base import Head, StoredSession


class PerturbedAddresses(AddressHook):
    """Changes how functions appear at the agent's address."""

    def __init__(self, app: App) -> None:
        self._perturbing = app.feature(PerturbationHook)

    @override
    def view(self, session: StoredSession, head: Head, name: str) -> View | None:
        concerned = name == AGENT and self._perturbing.concerns(session)
        return self._perturbing.view(session, head) if concerned else None
