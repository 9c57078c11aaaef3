"""Who takes part in a new session.

Rights are checked before anything is built, and written out, so that nothing changes them later.
"""

import operator
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field
from typing_extensions import override

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.features.evaluation.episodes.rights import (
    PARTICIPANTS,
    Participants,
    check_kept,
    check_rights,
    written_out,
)
from toolpack_server.packs.pack_function import is_offered
from toolpack_server.protocol.parameters import SessionRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    check_rights(given)  # what it raises says more than pydantic's errors, and isn't one of them
    return given


class ParticipantsRequest(SessionRequest):
    participants: Annotated[dict[str, Any], AfterValidator(_checked)] = Field(
        default_factory=dict,
        description="Who takes part besides the agent, and what each may do: {name: {functions, max_calls, prompt, "
        "answers}}; laid over those of the task.",
        exclude_if=operator.not_,  # the ids of sessions follow from requests, also of before there were any
    )


class ParticipantsCreationHook(CreationHook):
    """Writes out the rights of participants, to be kept with the recipe."""

    keeps = frozenset({PARTICIPANTS})

    def __init__(self, context: SessionContext) -> None:
        self._catalog = context.catalog

    @override
    def concerns(self, request: SessionRequest) -> bool:
        return isinstance(request, ParticipantsRequest) and bool(request.participants)

    @override
    def prepare(self, request: SessionRequest) -> SessionRequest:
        participants = written_out(_participants(request))
        check_rights(participants)  # those of a task are among them now
        self._check_functions(participants, self._catalog.choose(request.toolpacks))
        return request.model_copy(update={PARTICIPANTS: participants})

    @override
    def kept(self, request: SessionRequest) -> Mapping[str, Any]:
        return {PARTICIPANTS: _participants(request)}

    @override
    def check_kept(self, kept: Mapping[str, Any], toolpacks: Sequence[str]) -> None:
        check_kept(kept)
        self._check_functions(kept.get(PARTICIPANTS, {}), toolpacks)

    def _check_functions(self, participants: Participants, toolpacks: Sequence[str]) -> None:
        functions = self._catalog.listed(toolpacks)
        for name, rights in participants.items():
            for wanted in rights["functions"] or ():
                if not any(is_offered(function, frozenset({wanted})) for function in functions):
                    similar = get_close_matches(shown(wanted), [function.name for function in functions])
                    meant = f" Did you mean {' or '.join(similar)}?" if similar else ""
                    raise InvalidParamsError(
                        f"Participant {name!r}: the session has no function {shown(wanted)!r}.{meant}"
                    )


def _participants(request: SessionRequest) -> dict[str, Any]:
    return cast("ParticipantsRequest", request).participants
