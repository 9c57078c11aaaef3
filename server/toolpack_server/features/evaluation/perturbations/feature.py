"""Declaration of the feature `perturbations`."""

from toolpack_server.features.evaluation.perturbations.addresses import PerturbedAddresses
from toolpack_server.features.evaluation.perturbations.calls import PerturbedCallKind
from toolpack_server.features.evaluation.perturbations.creation_hook import (
    ForkPerturbations,
    PerturbationCreationHook,
    PerturbationParameters,
)
from toolpack_server.features.evaluation.perturbations.hook import PerturbationHook
from toolpack_server.features.evaluation.perturbations.results import CallPerturbed, SessionPerturbations
from toolpack_server.protocol.results import CallRecord, Session
from toolpack_server.rpc.methods import CreateSession, ForkSession
from toolpack_server.wiring.feature import Feature


class PerturbationsFeature(Feature):
    name = "perturbations"
    after = ("episodes", "tasks", "replay")
    record_kinds = (PerturbedCallKind,)  # replaces the core's record kind of calls
    creation_hooks = (PerturbationCreationHook,)
    parameters = {CreateSession: PerturbationParameters, ForkSession: ForkPerturbations}
    results = {Session: SessionPerturbations, CallRecord: CallPerturbed}
    operation_hooks = (PerturbationHook,)
    address_hooks = (PerturbedAddresses,)
