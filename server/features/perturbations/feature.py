"""What perturbations add to the server."""

from server.features.api import Feature
from server.features.perturbations.beginning import ForkPerturbations, PerturbationBeginning, PerturbationParameters
from server.features.perturbations.perturbing import Perturbing
from server.rpc.methods import CreateSession, ForkSession


class PerturbationsFeature(Feature):
    name = "perturbations"
    after = ("episodes", "tasks", "replay")
    beginnings = (PerturbationBeginning,)
    parameters = {CreateSession: PerturbationParameters, ForkSession: ForkPerturbations}
    around = (Perturbing,)
