"""The addresses of a session with participants: one of each, with the rights that the session keeps.

Rights were written out when the session was created; here they are only read.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from toolpack_server.features.evaluation.episodes.rights import PARTICIPANTS, Participants
from toolpack_server.sessions.addresses import Address, NamedAddresses


class ParticipantAddresses(NamedAddresses):
    purpose = "participant"
    member = PARTICIPANTS

    @override
    def of(self, kept: Mapping[str, Any]) -> Mapping[str, Address] | None:
        participants: Participants | None = kept.get(PARTICIPANTS)
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
