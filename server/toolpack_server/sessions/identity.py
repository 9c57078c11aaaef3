"""Ids and keys of sessions, and what proves that a stored session is the one that was created.

The agent key is a keyed hash of everything that never changes in a session: its id, owner, recipe, details, labels,
TTL and parent. So whoever can write to the store, but hasn't the key, can't change
these without changing the agent key, and can't find out the agent key that would fit.

The key of another address has twice as many digits. The first half is a keyed hash of the agent key and the name of the
address, the second half the session's id, hidden by a keyed hash of the first. So it needn't be stored,
and whoever has one can neither make another nor learn the id.

A session is used only if its agent key fits.
"""

import copy
import hashlib
import hmac
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from toolpack_server.base.errors import SessionNotFoundError, StateDamagedError
from toolpack_server.jsonio.strict import dumps
from toolpack_server.protocol.senders import AGENT
from toolpack_server.sessions.addresses import Addresses
from toolpack_server.sessions.recipes import Recipe
from toolpack_server.snapshots.seal import KeyedHash
from toolpack_server.stores.base import FAMILY, StoredSession, family_of

DIGITS = 48
_BEGINNING = 16  # digits that are the same whatever else was in the request
_DIGEST = 12  # digits for the parameters of the request
_OTHERS_KEY = re.compile(rf"[0-9a-f]{{{2 * DIGITS}}}")


def in_family(session_id: str, family: str) -> str:
    """Get an id as that of a member of a family."""
    return session_id[: FAMILY.start] + family + session_id[FAMILY.stop :]


class Creation:
    """A request to create sessions that can be repeated: its call_id, and a digest of everything else in it.

    The ids of its sessions differ from the first digit on: people and logs go by the first eight.
    """

    def __init__(self, keyed: KeyedHash, owner: str, call_id: str, request: list[Any]) -> None:
        self.call_id = call_id
        self._keyed = keyed
        self._owner = owner
        digest = hashlib.blake2b(dumps(request, sort_keys=True), digest_size=_DIGEST // 2)
        self._digest = digest.hexdigest()
        self.family = ""  # that of their parent, where they are forks

    def of_forks(self, session_id: str) -> "Creation":
        """Get the request as one that creates forks of this session."""
        creation = copy.copy(self)
        creation.family = family_of(session_id)
        return creation

    @property
    def beginning(self) -> str:
        """The beginning of the first id that is made from this call_id, whatever else was in the request."""
        return self.new_id(0)[:_BEGINNING]

    def new_id(self, number: int) -> str:
        made = self._keyed.of(self._owner, self.call_id, str(number))[: DIGITS - _DIGEST] + self._digest
        return in_family(made, self.family) if self.family else made

    def made(self, session_id: str) -> bool:
        """Whether an id was made from the same request, not only from the same call_id."""
        return session_id.endswith(self._digest)


class Identities:
    def __init__(self, key: bytes, addresses: Addresses) -> None:
        self._key = key
        self._addresses = addresses
        self._keyed = KeyedHash(key, "session")
        self._call_ids = KeyedHash(key, "call_id")

    @cached_property
    def _others(self) -> KeyedHash:
        return KeyedHash(self._key, self._addresses.named.purpose)

    def creation(self, owner: str, call_id: str, request: list[Any]) -> Creation:
        return Creation(self._call_ids, owner, call_id, request)

    def agent_key(self, session: StoredSession) -> str:
        facts = [
            *(session.id, session.owner, session.labels),
            *(float(session.ttl_seconds), session.created_at, session.parent and [*session.parent]),
        ]
        return self._keyed.of(dumps(facts, sort_keys=True), session.recipe, session.details)[:DIGITS]

    def keys(self, session: StoredSession) -> Mapping[str, str] | None:
        """Get the keys of the addresses of a session with more than one, by name; None if it has only its agent's."""
        named = self._addresses.named.of(Recipe.of(session).kept)
        if named is None:
            return None
        return {name: session.agent_key if name == AGENT else self._key_of(session, name) for name in named}

    def _key_of(self, session: StoredSession, name: str) -> str:
        proof = self._others.of("proof", session.agent_key, name)[:DIGITS]
        return proof + self._hidden(session.id, proof)

    def _hidden(self, session_id: str, proof: str) -> str:
        """Hide an id, or show the one that is hidden."""
        mask = self._others.of("id", proof)[:DIGITS]
        return f"{int(session_id, 16) ^ int(mask, 16):0{DIGITS}x}"

    @staticmethod
    def is_others(key: str) -> bool:
        """Whether a key has the form of one of another address than the agent's."""
        return _OTHERS_KEY.fullmatch(key) is not None

    def opened(self, key: str) -> str:
        """Get the id of the session that the key of another address opens, if it opens one: `name_of` says so."""
        return self._hidden(key[DIGITS:], key[:DIGITS])

    def name_of(self, session: StoredSession, key: str) -> str:
        """Get the name of another address than the agent's, whose key this is; or raise `SessionNotFoundError`."""
        others = {name: other for name, other in (self.keys(session) or {}).items() if name != AGENT}
        found = [name for name, other in others.items() if hmac.compare_digest(other, key)]
        if not found:
            raise SessionNotFoundError
        return found[0]

    def fits(self, session: StoredSession) -> bool:
        try:
            return hmac.compare_digest(session.agent_key.encode(), self.agent_key(session).encode())
        except (AttributeError, TypeError, ValueError):  # a damaged store has values of other types
            return False

    def check(self, session: StoredSession) -> None:
        """Check that a stored session is as it was created; a `StateDamagedError` says that it isn't."""
        if not self.fits(session):
            raise StateDamagedError(
                "The stored session fails its keyed hash, because it was changed in the store, or created with another "
                "secret key: restore a backup or that key, or close the session."
            )
