"""Other distributions of this repository, and sentences that say how to install a missing distribution.

The server's distribution contains entry points that name the commands and protocols of the other distributions, so that
an error can name the distribution to install.
"""

from importlib.metadata import entry_points
from importlib.util import find_spec

COMMANDS = "toolpack_server.elsewhere"
"""Entry point group with the commands of other distributions."""

PROTOCOLS = "toolpack_server.protocols_elsewhere"
"""Entry point group with the protocols that other distributions serve at HTTP paths."""


def companions(group: str) -> dict[str, str]:
    """Return the distribution of each command or protocol in an entry point group."""
    return {point.name: point.value.replace("_", "-") for point in entry_points(group=group)}


def missing_protocols() -> str:
    """Return sentences that say how to install the missing protocols, or "" if all are installed."""
    missing: dict[str, list[str]] = {}
    for name, package in companions(PROTOCOLS).items():
        if find_spec(package.replace("-", "_")) is None:
            missing.setdefault(package, []).append(name)
    return " ".join(advice(f"The paths of {', '.join(names)} come", package) for package, names in missing.items())


def advice(what: str, package: str) -> str:
    """Return the sentence that says how to install a missing distribution.

    Args:
        what: Start of the sentence, with a verb: "The paths of a2a come".
        package: Name of the distribution.
    """
    return (
        f"{what} with {package}, which isn't installed: install the wheel of this version, or, in a clone of the "
        f"repository, ./packages/{package}."
    )
