"""Functions that write rules of perturbations; see `server.features.rules`."""

from server.features.perturbations.authors import (
    fails,
    injects,
    loses_answer,
    rate_limited,
    rug_pull,
    times_out,
    unavailable,
)

__all__ = ["fails", "injects", "loses_answer", "rate_limited", "rug_pull", "times_out", "unavailable"]
