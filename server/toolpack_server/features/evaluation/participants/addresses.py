"""Addresses of a session's participants, built from the rights that the session stores.

The rights were checked and completed when the session was created.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS, Participants
from toolpack_server.sessions.addresses import Address, NamedAddresses


class ParticipantAddresses(NamedAddresses):
    """Creates the addresses of a session whose recipe contains participants."""

    purpose = "participant"
    member = PARTICIPANTS

    @override
    def of(self, feature_options: Mapping[str, Any]) -> Mapping[str, Address] | None:
        """Return the addresses by participant, or None if the session has no participants besides its agent."""
        participants: Participants | None = feature_options.get(PARTICIPANTS)
        if participants is None:
            return None
        return {
            name: Address(
                name,
                None if rights["functions"] is None else frozenset(rights["functions"]),
                rights["max_calls"],
                rights["prompt"],
                rights["answers"],
                tuple(other for other in participants if other != name),
            )
            for name, rights in participants.items()
        }
