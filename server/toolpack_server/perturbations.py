"""Public functions that return perturbation rules: injected faults. `features/evaluation/rules.py` describes rules."""

from toolpack_server.features.evaluation.perturbations.authors import (
    attacks,
    fails,
    injects,
    loses_answer,
    outages,
    phantom,
    rate_limited,
    rug_pull,
    times_out,
    unavailable,
)

__all__ = [
    "attacks",
    "fails",
    "injects",
    "loses_answer",
    "outages",
    "phantom",
    "rate_limited",
    "rug_pull",
    "times_out",
    "unavailable",
]
