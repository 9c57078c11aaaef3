"""Ids and keys of sessions, and the check that a stored session is unchanged since its creation.

The agent key is an HMAC of all values that never change in a session: its id, owner, recipe, details, labels, TTL,
creation time and parent. The server uses a session only if its agent key matches these values. An attacker who can
write to the store, but doesn't have the secret key, can't compute the agent key of changed values.

The key of an additional address has twice as many digits. The first half is an HMAC of the agent key and the name of
the address. The second half is the session's id, XORed with an HMAC of the first half. So the server can find the
session without storing the key. An agent that knows the key can't compute another key or the session's id.
"""

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
from toolpack_server.stores.base import StoredSession

DIGITS = 48
_PREFIX_DIGITS = 16  # this many first digits of an id are enough to find the first session of a request
_DIGEST_DIGITS = 12  # the last digits of an id are a digest of the request's parameters; this is their number
_ADDITIONAL_KEY = re.compile(rf"[0-9a-f]{{{2 * DIGITS}}}")


class Creation:
    """A repeatable request to create sessions, which consists of its call_id and a digest of its other parameters.

    A session's id is an HMAC of the owner, the call_id and the session's number in the request, followed by the digest.
    So a repeated request has the same ids. The ids created by one request differ in their first digits, because people
    and logs use only the first eight.
    """

    def __init__(self, keyed: KeyedHash, owner: str, call_id: str, request: list[Any]) -> None:
        self.call_id = call_id
        self._keyed = keyed
        self._owner = owner
        digest = hashlib.blake2b(dumps(request, sort_keys=True), digest_size=_DIGEST_DIGITS // 2)
        self._digest = digest.hexdigest()

    @property
    def id_prefix(self) -> str:
        """First digits of the first session's id. They depend on owner and call_id, not on the other parameters."""
        return self.new_id(0)[:_PREFIX_DIGITS]

    def new_id(self, number: int) -> str:
        """Return the id of the session with this number in the request. Numbers begin with 0."""
        return self._keyed.of(self._owner, self.call_id, str(number))[: DIGITS - _DIGEST_DIGITS] + self._digest

    def is_same_request(self, session_id: str) -> bool:
        """Return whether an id ends with the digest of this request's parameters.

        The caller has compared its beginning.
        """
        return session_id.endswith(self._digest)


class Identities:
    """Computes and checks ids and keys with the server's secret key."""

    def __init__(self, key: bytes, addresses: Addresses) -> None:
        self._key = key
        self._addresses = addresses
        self._keyed = KeyedHash(key, "session")
        self._call_ids = KeyedHash(key, "call_id")

    @cached_property
    def _additional_keyed(self) -> KeyedHash:
        return KeyedHash(self._key, self._addresses.named.purpose)

    def creation(self, owner: str, call_id: str, request: list[Any]) -> Creation:
        """Return a repeatable request. `request` contains all parameters except the call_id, as JSON values."""
        return Creation(self._call_ids, owner, call_id, request)

    def agent_key(self, session: StoredSession) -> str:
        """Compute the agent key of a session."""
        facts = [
            *(session.id, session.owner, session.labels),
            *(float(session.ttl_seconds), session.created_at, session.parent and [*session.parent]),
        ]
        return self._keyed.of(dumps(facts, sort_keys=True), session.recipe, session.details)[:DIGITS]

    def keys(self, session: StoredSession) -> Mapping[str, str] | None:
        """Return the keys of a session's addresses by name, or None if the session has only the agent's address."""
        named = self._addresses.named.of(Recipe.of(session).feature_options)
        if named is None:
            return None
        return {name: session.agent_key if name == AGENT else self._key_of(session, name) for name in named}

    def _key_of(self, session: StoredSession, name: str) -> str:
        """Compute the key of an additional address; see the module's docstring."""
        proof = self._additional_keyed.of("proof", session.agent_key, name)[:DIGITS]
        return proof + self._masked(session.id, proof)

    def _masked(self, session_id: str, proof: str) -> str:
        """XOR an id with a mask derived from `proof`. A second call, with the result, restores the id."""
        mask = self._additional_keyed.of("id", proof)[:DIGITS]
        return f"{int(session_id, 16) ^ int(mask, 16):0{DIGITS}x}"

    @staticmethod
    def is_additional_key(key: str) -> bool:
        """Return whether a key has the form of an additional address's key."""
        return _ADDITIONAL_KEY.fullmatch(key) is not None

    def session_id_in(self, key: str) -> str:
        """Return the session id in the key of an additional address.

        The caller must check the key with `name_of`, because an invented key also yields an id.
        """
        return self._masked(key[DIGITS:], key[:DIGITS])

    def name_of(self, session: StoredSession, key: str) -> str:
        """Return the name of a session's additional address with this key.

        Raises:
            SessionNotFoundError: The session has no such address.
        """
        others = {name: other for name, other in (self.keys(session) or {}).items() if name != AGENT}
        names = [name for name, other in others.items() if hmac.compare_digest(other, key)]
        if not names:
            raise SessionNotFoundError
        return names[0]

    def is_intact(self, session: StoredSession) -> bool:
        """Return whether a stored session matches its agent key."""
        try:
            return hmac.compare_digest(session.agent_key.encode(), self.agent_key(session).encode())
        except (AttributeError, TypeError, ValueError):  # the store is damaged, so a value has another type
            return False

    def check(self, session: StoredSession) -> None:
        """Check that a stored session is unchanged since its creation.

        Raises:
            StateDamagedError: The session was changed.
        """
        if not self.is_intact(session):
            raise StateDamagedError(
                "The stored session fails its keyed hash, because it was changed in the store, or created with another "
                "secret key: restore a backup or that key, or close the session."
            )
