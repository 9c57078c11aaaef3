"""Resets of sessions: a reset creates a new version with the content of an older version.

A reset deletes nothing: all versions, records and call_ids remain.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from toolpack_server.base.errors import ClassesChangedError, MissingBlobError
from toolpack_server.engine.jobs import StartClock
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.execution.parts import emptied, toolpack_of
from toolpack_server.execution.snapshot import Snapshot
from toolpack_server.execution.volumes import chain_of, class_parts, stored_environment
from toolpack_server.protocol.results import ResetRecord
from toolpack_server.sessions.context import SessionContext
from toolpack_server.sessions.operation import SessionOperation
from toolpack_server.sessions.recipes import Recipe, details_of
from toolpack_server.sessions.record_kinds import RecordKind, Shown
from toolpack_server.stores.base import Record, StoredSession
from toolpack_server.volumes.volume import VOID, is_piece


class ResetOperation(SessionOperation):
    """Operation that resets a session to an older version. It returns the number of the new version."""

    after_commits = True
    is_told = True
    method = "reset_session"
    record_kind = "reset"
    late = "The reset took longer than {:g} s; nothing has changed."

    def __init__(self, context: SessionContext, session_id: str, owner: str, version: int, call_id: str | None) -> None:
        super().__init__(context, session_id, owner, call_id)
        self.to_version = version

    def asked(self) -> Sequence[Any]:
        """Return the parameters that a repeated reset must have in common with the first reset."""
        return (self.to_version,)

    def repeated(self, record: Record, shown: Mapping[str, Any], private: Mapping[str, Any]) -> int:  # noqa: ARG002
        """Return the number of the version that the first reset created."""
        return record.version

    def change(self, state: SessionState, start_clock: StartClock) -> Effect:  # noqa: ARG002
        """Return the older version's parts as a new version.

        If the classes have changed since version 0 was stored, build version 0 again from the recipe.

        Raises:
            ClassesChangedError: The classes of another version have changed, or a toolpack isn't loaded.
            VersionNotRetainedError: The version doesn't exist, or was deleted.
        """
        context = self.context
        state.take_live()
        parts = context.store.parts_at(self.session_id, self.to_version)
        sealed = class_parts(parts)
        try:
            blobs: Mapping[str, bytes] = context.store.blobs([parts[part] for part in sealed])
        except MissingBlobError:
            # Raises an error if the version was deleted meanwhile.
            context.store.parts_at(self.session_id, self.to_version)
            raise
        new_blobs: Mapping[str, bytes] = {}
        try:
            for part in sealed:
                context.codec.unseal(part, parts[part], blobs[parts[part]])
        except ClassesChangedError:
            loaded = context.catalog.toolpacks
            if self.to_version != 0 or any(toolpack not in loaded for toolpack in self.facts.recipe.toolpacks):
                raise
            parts, blobs = self._rebuild(state.session, parts)
            new_blobs = blobs
        parts, new_blobs = self._without_newer_pieces(state, parts, new_blobs)
        by_part = {part: blobs[parts[part]] for part in sealed if part in parts and not is_piece(part)}
        members = {"to_version": self.to_version}
        return Effect(state.version + 1, members, 1, parts=parts, new_blobs=new_blobs, blobs=by_part)

    def _without_newer_pieces(
        self, state: SessionState, parts: Mapping[str, str], new_blobs: Mapping[str, bytes]
    ) -> tuple[Mapping[str, str], Mapping[str, bytes]]:
        """Return the parts and blobs, with an empty blob for each newer piece of a volume.

        A piece is newer if the current version contains it, but the older version doesn't. It becomes empty, because a
        store can't remove a part.
        """
        newer = [part for part in state.parts if is_piece(part) and part not in parts]
        empty_pieces = {part: self.context.codec.seal(part, VOID) for part in newer}
        return (
            {**parts, **{part: blob_id for part, (blob_id, _) in empty_pieces.items()}},
            {**new_blobs, **dict(empty_pieces.values())},
        )

    def _rebuild(self, session: StoredSession, old: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, bytes]]:
        """Build the initial environments with the current classes. Return their blob ids by part, and blobs by id.

        Args:
            session: The session.
            old: Blob ids of version 0, by part.
        """
        context = self.context
        recipe = Recipe.of(session)
        parts, blobs = context.initial_parts(
            recipe.toolpacks, *recipe.inputs(), context.initial_conditions(details_of(session))
        )
        # A store can't remove a part, so a part that the new classes don't define becomes empty.
        for part in old.keys() - parts.keys():
            if is_piece(part):  # `_without_newer_pieces` empties it
                continue
            toolpack = toolpack_of(part)
            stored = stored_environment(tuple(parts), toolpack)
            if stored is None:
                environment = emptied(context.catalog.toolpacks[toolpack].environment_class)
            else:
                # While the session has this part, the environment is read from it instead of from a chain of pieces.
                # So write to the part.
                chain = chain_of(context.codec, Snapshot(parts, {name: blobs[parts[name]] for name in parts}), stored)
                environment = context.codec.lazy_kind.read(chain, context.codec.volumes)
                for piece in stored.parts:
                    del parts[piece]
            parts[part], blob = context.codec.encode(part, environment)
            blobs[parts[part]] = blob
        return parts, blobs


class ResetKind(RecordKind):
    """Kind of the record of a reset."""

    name = "reset"
    shape = ResetRecord
    title = "reset to version {to_version}"
    inherited = False

    def goes_back_to(self, shown: Shown) -> int | None:
        """Return the version that the reset restored."""
        version: int = shown["to_version"]
        return version

    def text(self, shown: Shown, width: int) -> str:  # noqa: ARG002 - the signature of all kinds
        return f"reset to version {shown['to_version']}: version {shown['version']}"
