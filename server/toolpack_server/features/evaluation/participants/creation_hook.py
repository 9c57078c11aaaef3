"""Creation hook that stores the rights of a new session's participants.

All rights are stored, including defaults, so that later changes to a task's code don't affect the session.
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
    check_rights,
    check_stored_rights,
    fill_defaults,
)
from toolpack_server.packs.pack_function import is_offered
from toolpack_server.protocol.parameters import SessionRequest
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook


def _check(participants: dict[str, Any]) -> dict[str, Any]:
    check_rights(participants)  # raises InvalidParamsError, whose message is clearer than a ValidationError's
    return participants


class ParticipantsRequest(SessionRequest):
    participants: Annotated[dict[str, Any], AfterValidator(_check)] = Field(
        default_factory=dict,
        description="Participants and their rights: {name: {functions, max_calls, prompt, answers}}. They are merged "
        "with the task's participants, and values here replace the task's values.",
        # Session ids are derived from serialised requests. So an empty `participants` is left out: the id must stay
        # the same as before this parameter existed.
        exclude_if=operator.not_,
    )


class ParticipantsCreationHook(CreationHook):
    """Checks and completes the rights of participants, and stores them with the recipe."""

    option_names = frozenset({PARTICIPANTS})

    def __init__(self, context: SessionContext) -> None:
        self._catalog = context.catalog

    @override
    def concerns(self, request: SessionRequest) -> bool:
        return isinstance(request, ParticipantsRequest) and bool(request.participants)

    @override
    def prepare(self, request: SessionRequest) -> SessionRequest:
        """Return the request with all rights of all participants, so that the session stores them.

        Raises:
            InvalidParamsError: The rights are invalid, or name a function that the session doesn't have.
        """
        participants = fill_defaults(_participants(request))
        check_rights(participants)  # again, because the task's rights were merged with the request's
        self._check_functions(participants, self._catalog.choose(request.toolpacks))
        return request.model_copy(update={PARTICIPANTS: participants})

    @override
    def feature_options(self, request: SessionRequest) -> Mapping[str, Any]:
        return {PARTICIPANTS: _participants(request)}

    @override
    def check_feature_options(self, feature_options: Mapping[str, Any], toolpacks: Sequence[str]) -> None:
        check_stored_rights(feature_options)
        self._check_functions(feature_options.get(PARTICIPANTS, {}), toolpacks)

    def _check_functions(self, participants: Participants, toolpacks: Sequence[str]) -> None:
        """Check that each function in the rights exists in the session."""
        functions = self._catalog.listed(toolpacks)
        for name, rights in participants.items():
            for right in rights["functions"] or ():
                if not any(is_offered(function, frozenset({right})) for function in functions):
                    similar = get_close_matches(shown(right), [function.name for function in functions])
                    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
                    raise InvalidParamsError(
                        f"Participant {name!r}: the session has no function {shown(right)!r}.{hint}"
                    )


def _participants(request: SessionRequest) -> dict[str, Any]:
    return cast("ParticipantsRequest", request).participants
