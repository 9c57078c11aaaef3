"""Functions that write rules of perturbations; see `features/evaluation/rules.py`."""

from toolpack_server.features.evaluation.perturbations.authors import (
    fails,
    injects,
    loses_answer,
    rate_limited,
    rug_pull,
    times_out,
    unavailable,
)

__all__ = ["fails", "injects", "loses_answer", "rate_limited", "rug_pull", "times_out", "unavailable"]
