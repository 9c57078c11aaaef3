"""Hooks of seeded sessions: sessions with a fixed clock or fixed random numbers.

For each call, `SeedHook` pins the clock and random numbers, and adds the digest of the world after the call to the
call's record. `SeedCreationHook` stores the seed and the clock in new sessions. The rest of the server doesn't know
about seeds.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.features.replay.blob_digests import StateDigests
from toolpack_server.features.replay.pinned_clock import PinnedClock
from toolpack_server.features.replay.seed_parameters import REAL, REPLAYS, Seeds
from toolpack_server.features.replay.writers import WRITTEN_BY, current_writers
from toolpack_server.protocol.parameters import ForkRequest, SessionRequest
from toolpack_server.sessions.calls import CallOperation
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.hooks import CreationHook
from toolpack_server.sessions.operation import OperationHook, SessionOperation
from toolpack_server.sessions.resets import ResetOperation
from toolpack_server.stores.base import Head, StoredSession


class SeedHook(OperationHook):
    """Pins time and random numbers for the calls of seeded sessions, and records the digests of their worlds."""

    def __init__(self, context: SessionContext) -> None:
        self._settings = context.settings
        self._digests = StateDigests(context.runner, context.store)

    def concerns(self, session: StoredSession) -> bool:
        return bool(Seeds.of(session))

    def before(self, operation: SessionOperation, state: SessionState, start_clock: StartClock) -> None:
        """Pin the clock and random numbers of a call, and compute the digest of the world before the call.

        Raises:
            InvalidParamsError: This server can't pin time or random numbers.
        """
        if not isinstance(operation, CallOperation):
            return
        seeds = Seeds.of(state.session)
        seeds.check(self._settings)
        operation.plan.policy = seeds.pin(state.index + 2)  # the next record, counted from 1
        # The check of read-only functions runs only for some calls, so it is off here: a replayed call must do the same
        # work as the original call.
        operation.plan.compares = False

        def digest() -> str | None:
            start_clock(self._settings.timeout_seconds)
            return self._digests.digest(state.parts, operation.blobs)

        state.remembered(self, digest)

    def after(self, operation: SessionOperation, state: SessionState, change: Effect) -> None:
        """Add the digest of the world after a call or a reset to its record.

        The digest is stored as the hook's state, for the next operation. If no part changed, the old digest is still
        correct.
        """
        is_reset = isinstance(operation, ResetOperation)
        if change.parts or is_reset:
            if isinstance(operation, CallOperation):
                for part, blob_id in change.parts.items():
                    self._digests.put(blob_id, change.answer.digests[part])
            # These blobs aren't in the store yet.
            new = {part: change.new_blobs[id_] for part, id_ in change.parts.items() if id_ in change.new_blobs}
            change.hook_state[self] = self._digests.digest({**state.parts, **change.parts}, {**change.blobs, **new})
        elif self in state.hook_state:
            change.hook_state[self] = state.hook_state[self]
        if (is_reset or isinstance(operation, CallOperation)) and change.hook_state.get(self) is not None:
            (change.members or {})["state"] = change.hook_state[self]


class SeedCreationHook(CreationHook):
    """Stores the seed and clock of a new session, and pins them while its environments are built."""

    option_names = frozenset({"seed", "clock", "clock_step_seconds", "ticks", REPLAYS, WRITTEN_BY})

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._settings = context.settings
        self._paths = context.paths

    @override
    def concerns(self, request: SessionRequest) -> bool:
        return Seeds.of_request(request) != REAL

    @override
    def details(self, request: SessionRequest) -> Mapping[str, Any]:
        return {**Seeds.of_request(request).of_new(self._settings).details(), **current_writers(self._context)}

    @override
    def details_of_fork(
        self, request: ForkRequest, parent: StoredSession, head: Head, version: int
    ) -> Mapping[str, Any]:
        """Return the details of a fork. Its ticks continue after the record that created the forked version.

        In a fork that begins before a record, the ticks continue after the last inherited record.
        """
        parent_seeds = Seeds.of(parent)
        seeds = Seeds.of_request(request).of_fork(parent_seeds, self._settings)
        if not seeds:
            return {}
        if request.before is not None:
            last = head.index
        else:
            # The record after the last record of the version before: this record created the forked version.
            last = self._paths.end(parent.id, version - 1, head.index) + 1 if version else -1
        ticks = parent_seeds.ticks + last + 1
        return {**replace(seeds, ticks=ticks).details(), **current_writers(self._context)}

    @override
    def conditions(self, details: Mapping[str, Any]) -> PinnedClock | None:
        return Seeds.of_details(details).pin(0)
