"""Distributions of this repository beside the server's, and how to install one that is missing."""

from importlib.metadata import entry_points
from importlib.util import find_spec

COMMANDS = "toolpack_server.elsewhere"
"""The group of entry points that name commands of other distributions."""

PROTOCOLS = "toolpack_server.protocols_elsewhere"
"""The group of entry points that name protocols whose HTTP paths other distributions have."""


def companions(group: str) -> dict[str, str]:
    """Return the distribution of each name in a group."""
    return {point.name: point.value.replace("_", "-") for point in entry_points(group=group)}


def missing_protocols() -> str:
    """Return sentences that say how to install the protocols which aren't; an empty text if all are."""
    missing: dict[str, list[str]] = {}
    for name, package in companions(PROTOCOLS).items():
        if find_spec(package.replace("-", "_")) is None:
            missing.setdefault(package, []).append(name)
    return " ".join(advice(f"The paths of {', '.join(names)} come", package) for package, names in missing.items())


def advice(what: str, package: str) -> str:
    """Return the sentence that says how to install a missing distribution."""
    return (
        f"{what} with {package}, which isn't installed: install the wheel of this version, or, in a clone of the "
        f"repository, ./packages/{package}."
    )
