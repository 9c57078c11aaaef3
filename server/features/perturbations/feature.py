"""What perturbations add to the server."""

from server.features.api import CreateSession, Feature, ForkSession
from server.features.perturbations.calls import PerturbedCallKind
from server.features.perturbations.creation_hook import (
    ForkPerturbations,
    PerturbationCreationHook,
    PerturbationParameters,
)
from server.features.perturbations.perturbing import Perturbing


class PerturbationsFeature(Feature):
    name = "perturbations"
    after = ("episodes", "tasks", "replay")
    record_kinds = (PerturbedCallKind,)  # in place of the core's
    creation_hooks = (PerturbationCreationHook,)
    parameters = {CreateSession: PerturbationParameters, ForkSession: ForkPerturbations}
    operation_hooks = (Perturbing,)
