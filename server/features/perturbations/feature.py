"""What perturbations add to the server."""

from server.features.api import CallRecord, CreateSession, Feature, ForkSession, Session
from server.features.perturbations.calls import PerturbedCallKind
from server.features.perturbations.creation_hook import (
    ForkPerturbations,
    PerturbationCreationHook,
    PerturbationParameters,
)
from server.features.perturbations.perturbing import Perturbing
from server.features.perturbations.results import CallPerturbed, SessionPerturbations


class PerturbationsFeature(Feature):
    name = "perturbations"
    after = ("episodes", "tasks", "replay")
    record_kinds = (PerturbedCallKind,)  # in place of the core's
    creation_hooks = (PerturbationCreationHook,)
    parameters = {CreateSession: PerturbationParameters, ForkSession: ForkPerturbations}
    results = {Session: SessionPerturbations, CallRecord: CallPerturbed}
    operation_hooks = (Perturbing,)
