"""Several Redis as one store: each of them, a shard, has whole families of sessions, with all their forks.

The rule: a family's shard follows from the ids of its sessions, so no step changes two shards, and no shard knows what
is in another. One that gives no answer is *lost* until it does: what needs it is refused at once, all else goes on.

Each shard has a name, made at random when the store is made, and knows those of all. Families are divided by the names
(rendezvous hashing), so the order of the URLs means nothing, and a shard may move to another address.
"""

import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from hashlib import blake2b
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

from toolpack_server.base.cache import BoundedCache
from toolpack_server.base.errors import MissingBlobError, OverloadedError, SessionNotFoundError, SettingsError
from toolpack_server.features.stores.redis.connection import UNREACHABLE, unusable
from toolpack_server.features.stores.redis.shard import EMPTY, NOT_THIS, Shard
from toolpack_server.features.stores.redis.store import RedisStore
from toolpack_server.stores.base import (
    NO_HISTORY,
    Commit,
    Counted,
    Head,
    History,
    Lease,
    Record,
    SessionQuery,
    SharedStore,
    StoredSession,
    family_of,
)
from toolpack_server.stores.history import to_note
from toolpack_server.stores.outside import name_of

T = TypeVar("T")

AT_ONCE = 64  # requests that go to several shards
KNOWN = 65_536  # families, and blobs, of which the shard is remembered


def opened(url: str, *, exclusive: bool = False) -> SharedStore:
    """Open the store of a URL, or of several with commas between them; `RedisStore.from_url` describes one."""
    urls = [each.strip() for each in re.split(r",(?=\s*rediss?://)", url.rstrip(", "))]
    return RedisShards(urls) if len(urls) > 1 else RedisStore.from_url(url, exclusive=exclusive)


class RedisShards:
    """Keeps each family of sessions in one of several Redis; `SharedStore` documents the methods.

    Args:
        urls: Of all shards, in any order. One that was part of the store before needn't answer now.

    Attributes:
        shards: All of them.

    Raises:
        SettingsError: They aren't the shards of one store, or can't be used.
    """

    shared = True

    def __init__(self, urls: Sequence[str]) -> None:
        self.shards = [*map(Shard, urls)]
        self._threads = ThreadPoolExecutor(AT_ONCE, "shards")
        self._name_of = lru_cache(KNOWN)(self._chosen)  # by family
        self._of_blobs = BoundedCache[str, Shard](KNOWN)
        self._counts: dict[tuple[str, str], int] = {}  # what lost shards have said last, by shard and question
        try:
            self._names = self._agreed()
        except BaseException:
            self.close()
            raise

    # Which shards there are

    def _agreed(self) -> tuple[str, ...]:
        """Let all shards be of one store, and get their names."""
        found: dict[Shard, tuple[str, Sequence[str]]] = {}
        away: dict[Shard, OverloadedError] = {}
        for shard in self.shards:
            try:
                shard.store.open()
                found[shard] = shard.store.place()
            except OverloadedError as error:
                away[shard] = error
        stores = {tuple(names) for _, names in found.values() if names}
        if len(stores) > 1:
            raise SettingsError("--store names shards of different stores: name all shards of one.")
        if away and not stores:
            raise unusable(next(iter(away.values())))
        names = stores.pop() if stores else self._named(found)
        if len(names) != len(self.shards):
            raise SettingsError(
                f"--store names {len(self.shards)} shards, and the store has {len(names)}: name all of these and no "
                "others. Their number stays, as sessions don't move."
            )
        for shard in found:
            shard.name, noted = shard.store.place()
            if shard.name not in names:
                missing = next(iter({*names} - {name for name, _ in found.values()}), "")
                why = NOT_THIS if shard.name else EMPTY.format(missing)
                raise SettingsError(f"Redis {shard.label} can't be used: {why}")
            if not noted:
                shard.store.take_place(shard.name, names)
        if len({shard.name for shard in found}) < len(found):
            raise SettingsError("--store names a shard twice: name each once.")
        for shard, why_away in away.items():
            shard.look_after(partial(self._join, shard, names), why_away)
        return names

    def _named(self, found: Iterable[Shard]) -> tuple[str, ...]:
        """Give names to the shards of a new store."""
        for shard in found:
            if shard.store.count():
                raise SettingsError(
                    f"Redis {shard.label} has sessions of a store without shards: shards must be empty at the start."
                )
            shard.store.take_place(secrets.token_hex(8))
        return tuple(sorted({shard.store.place()[0] for shard in found}))

    def _join(self, shard: Shard, names: Sequence[str]) -> None:
        """Take in a shard that was away at the start."""
        shard.store.open()
        name, _ = shard.store.place()
        if name not in names or name in {each.name for each in self.shards}:
            raise SettingsError(NOT_THIS)
        shard.name = name

    def _chosen(self, family: str) -> str:
        return max(self._names, key=lambda name: blake2b(f"{name} {family}".encode(), digest_size=8).digest())

    def _found(self, session_id: str) -> Shard | None:
        """Get the shard of a session; None if it isn't known, as it was away at the start."""
        name = self._name_of(family_of(session_id))
        return next((shard for shard in self.shards if shard.name == name), None)

    def _of(self, session_id: str) -> Shard:
        shard = self._found(session_id)
        if shard is None:
            raise OverloadedError(UNREACHABLE)
        return shard

    def _do(self, session_id: str, step: Callable[[RedisStore], T]) -> T:
        return self._of(session_id).do(step)

    def _there(self) -> list[Shard]:
        """Get the shards that aren't lost, in the order of their names; raise `OverloadedError` if all are."""
        there = sorted((shard for shard in self.shards if not shard.lost), key=lambda shard: shard.name)
        if not there:
            raise OverloadedError(UNREACHABLE)
        return there

    def _places(self, session_ids: Iterable[str]) -> dict[Shard, list[int]]:
        """Get the places of ids in their list, by shard."""
        places = defaultdict[Shard, list[int]](list)
        for place, session_id in enumerate(session_ids):
            places[self._of(session_id)].append(place)
        return places

    def _each(self, steps: Mapping[Shard, Callable[[RedisStore], T]]) -> dict[Shard, T | OverloadedError]:
        """Do a step on each of several shards, at the same time."""

        def do(shard: Shard) -> T | OverloadedError:
            try:
                return shard.do(steps[shard])
            except OverloadedError as error:
                return error

        done = map(do, steps) if len(steps) == 1 else self._threads.map(do, steps)
        return dict(zip(steps, done, strict=True))

    def _all(self, steps: Mapping[Shard, Callable[[RedisStore], T]]) -> dict[Shard, T]:
        """Do a step on each of several shards, or raise `OverloadedError`: mostly before anything was done."""
        if any(shard.lost for shard in steps):
            raise OverloadedError(UNREACHABLE)
        done: dict[Shard, T] = {}
        for shard, answer in self._each(steps).items():
            if isinstance(answer, OverloadedError):
                raise answer
            done[shard] = answer
        return done

    def _apart(self, items: Sequence[T], session_ids: Iterable[str], step: Callable[[RedisStore, list[T]], Any]) -> Any:
        """Do a step with a list that is divided among shards; get the answer for each item."""
        places = self._places(session_ids)
        steps = {shard: partial(_with, step, [items[place] for place in each]) for shard, each in places.items()}
        answers: list[Any] = [None] * len(items)
        for shard, found in self._all(steps).items():
            for place, answer in zip(places[shard], found, strict=True):
                answers[place] = answer
        return answers

    def _up_to(self, limit: int, step: Callable[[RedisStore, int], Sequence[T]]) -> list[T]:
        """Do a step on one shard after the other, until they have given so many answers together."""
        found: list[T] = []
        for shard in self._there():
            left = limit - len(found)
            if left > 0:
                found += shard.do(partial(_with, step, left))
        return found

    # What is of one family

    def get(self, session_id: str) -> tuple[StoredSession, Head] | None:
        found = self._do(session_id, lambda store: store.get(session_id))
        if found:
            self._know(session_id, found[1].parts)
        return found

    def ancestor(self, session_id: str) -> StoredSession | None:
        return self._do(session_id, lambda store: store.ancestor(session_id))

    def parts_at(self, session_id: str, version: int) -> Mapping[str, str]:
        return self._know(session_id, self._do(session_id, lambda store: store.parts_at(session_id, version)))

    def record_of_call(self, session_id: str, call_id: str) -> Record | None:
        return self._do(session_id, lambda store: store.record_of_call(session_id, call_id))

    def records(self, session_id: str, after: int, limit: int, max_bytes: int | None = None) -> list[Record]:
        return self._do(session_id, lambda store: store.records(session_id, after, limit, max_bytes))

    def trim(self, session_id: str, keep_versions: int, keep_bytes: int) -> None:
        self._do(session_id, lambda store: store.trim(session_id, keep_versions, keep_bytes))

    def renew(self, session_id: str, expires_at: float) -> None:
        self._do(session_id, lambda store: store.renew(session_id, expires_at))

    def release(self, session_id: str, holder: str, epoch: int) -> None:
        self._do(session_id, lambda store: store.release(session_id, holder, epoch))

    def ask(self, session_id: str, holder: str) -> None:
        self._do(session_id, lambda store: store.ask(session_id, holder))

    # What may be of several families

    def create(
        self,
        sessions: Sequence[StoredSession],
        parts: Mapping[str, str],
        blobs: Mapping[str, bytes],
        history: History = NO_HISTORY,
    ) -> None:
        places = self._places(session.id for session in sessions)
        if any(shard.lost for shard in places):
            raise OverloadedError(UNREACHABLE)
        for shard, each in places.items():
            some = [sessions[place] for place in each]
            self._create(shard, some, parts, blobs, history)
            self._know(some[0].id, parts)

    def _create(self, shard: Shard, sessions: Sequence[StoredSession], *given: Any) -> None:
        parts, blobs, history = given
        try:
            shard.do(lambda store: store.create(sessions, parts, blobs, history))
        except MissingBlobError:
            named = {*parts.values(), *(blob for _, _, blob in history.rows())} - blobs.keys()
            more = self._whole(named, shard)
            if not more:
                raise
            shard.do(lambda store: store.create(sessions, parts, {**blobs, **more}, history))

    def commit(self, commits: Sequence[Commit]) -> Sequence[bool | None]:
        places = defaultdict[Shard | None, list[int]](list)
        for place, commit in enumerate(commits):
            places[self._found(commit.session_id)].append(place)
        some = {shard: [commits[place] for place in each] for shard, each in places.items() if shard}
        answers: list[bool | None] = [None] * len(commits)
        kept = self._each({shard: partial(_with, RedisStore.commit, each) for shard, each in some.items()})
        for shard, answer in kept.items():
            if not isinstance(answer, OverloadedError):
                for place, is_kept in zip(places[shard], self._completed(shard, some[shard], answer), strict=True):
                    answers[place] = is_kept
            elif len(places) == 1:
                raise answer
        return answers

    def _completed(self, shard: Shard, commits: Sequence[Commit], kept: Sequence[bool]) -> Sequence[bool | None]:
        """Send commits again, if some were refused that name what only other shards have, together with that."""
        refused = [commit for commit, is_kept in zip(commits, kept, strict=True) if not is_kept]
        named = {blob for commit in refused for blob in commit.parts.values() if blob not in commit.blobs}
        more = self._whole(named, shard)
        return shard.do(lambda store: store.commit([_with_blobs(each, more) for each in commits])) if more else kept

    def _whole(self, blobs: Collection[str], but: Shard) -> dict[str, bytes]:
        """Get those of these blobs that other shards have, but none that are kept outside: a stub is for one shard."""
        found: dict[str, bytes] = {}
        for shard in self.shards if blobs else ():
            if shard is not but and not shard.lost:
                found |= shard.do(lambda store: store.some_blobs([*blobs]))
        return {blob: body for blob, body in found.items() if name_of(body) is None}

    def records_at(self, wanted: Sequence[tuple[str, range]]) -> list[list[Record]]:
        found: list[list[Record]] = self._apart(wanted, (id_ for id_, _ in wanted), RedisStore.records_at)
        return found

    def claim(
        self, session_ids: Sequence[str], holder: str, dead: Collection[Lease] = ()
    ) -> Sequence[Head | Lease | None]:
        claimed: list[Head | Lease | None] = self._apart(
            session_ids, session_ids, lambda store, ids: store.claim(ids, holder, dead)
        )
        for session_id, found in zip(session_ids, claimed, strict=True):
            if isinstance(found, Head):
                self._know(session_id, found.parts)
        return claimed

    def delete(self, session_ids: Sequence[str]) -> Sequence[str]:
        places = self._places(session_ids)
        some = {shard: [session_ids[place] for place in each] for shard, each in places.items()}
        deleted = self._all({shard: partial(_with, RedisStore.delete, ids) for shard, ids in some.items()})
        return [id_ for ids in deleted.values() for id_ in ids]

    # What may be anywhere

    def find_agent(self, agent_key: str) -> str | None:
        answers = self._each(dict.fromkeys(self.shards, lambda store: store.find_agent(agent_key))).values()
        lost = [answer for answer in answers if isinstance(answer, OverloadedError)]
        found = [answer for answer in answers if isinstance(answer, str)]
        if lost and not found:
            raise lost[0]
        return found[0] if found else None

    def blobs(self, ids: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        known = defaultdict[Shard, list[str]](list)
        for blob in ids:
            if shard := self._of_blobs.get(blob):
                known[shard].append(blob)
        lost = None
        for shard in [*known, *self.shards]:
            wanted = [blob for blob in known.pop(shard, ids) if blob not in found]
            if wanted:
                try:
                    found |= shard.do(partial(_with, RedisStore.some_blobs, wanted))
                except OverloadedError as error:
                    lost = error
        if len(found) < len({*ids}):
            if lost:
                raise lost
            raise MissingBlobError(*(blob for blob in ids if blob not in found))
        return found

    def _know(self, session_id: str, parts: Mapping[str, str]) -> Mapping[str, str]:
        """Remember where the blobs of a session are: others, as of its owner, may have the same."""
        shard = self._of(session_id)
        for blob in parts.values():
            self._of_blobs.put(blob, shard)
        return parts

    def list(self, query: SessionQuery) -> Sequence[tuple[StoredSession, int]]:
        if query.parent is not None:
            return self._do(query.parent, lambda store: store.list(query))
        created_at = self._created_at(query.after) if query.newest_first and query.after else None
        found = self._all(dict.fromkeys(self.shards, lambda store: store.list(query, created_at)))
        if query.newest_first:
            ordered = merge(*found.values(), key=lambda each: (each[0].created_at, each[0].id), reverse=True)
        else:
            ordered = merge(*found.values(), key=lambda each: each[0].id)
        return [*islice(ordered, query.limit)]

    def _created_at(self, session_id: str) -> float:
        found = self.get(session_id)
        if not found:
            raise SessionNotFoundError
        return found[0].created_at

    def count(self, owner: str | None = None) -> int:
        return self._sum(f"count {owner}" if owner is not None else "count", lambda store: store.count(owner))

    def stored_bytes(self, owner: str) -> int:
        return self._sum(f"bytes {owner}", lambda store: store.stored_bytes(owner))

    def _sum(self, question: str, step: Callable[[RedisStore], int]) -> int:
        """Add up what all shards say, and lost ones have said last."""
        self._there()
        total = 0
        for shard, answer in self._each(dict.fromkeys(self.shards, step)).items():
            if not isinstance(answer, OverloadedError):
                self._counts[shard.label, question] = answer
            total += self._counts.get((shard.label, question), 0)
        return total

    # Time and workers

    def count_time(self, clock: float | None = None) -> Counted:
        """Count one time for all shards; the contract says how.

        Each has the same noted. What one has missed while it was lost doesn't count, so no session there has ended.
        """
        found = self._all(dict.fromkeys(self._there(), RedisStore.noted))
        known = [(noted, uncounted) for noted, uncounted, _ in found.values() if noted is not None]
        _, uncounted = max(known, default=(0.0, 0.0))
        earliest = min((noted for noted, _ in known), default=None)
        now = next(iter(found.values()))[2] if clock is None else clock
        note = to_note(earliest, uncounted, now)
        if note:
            self._all({shard: lambda store: store.note(*note) for shard in found})
            uncounted = note[1]
        return Counted(now - uncounted, uncounted)

    def delete_expired(self, now: float, limit: int, busy: Collection[str] = ()) -> Sequence[str]:
        return self._up_to(limit, lambda store, left: store.delete_expired(now, left, busy))

    def clean_up(self) -> None:
        """Nothing is left of deleted sessions."""

    def heartbeat(self, holder: str) -> Collection[str]:
        self._there()
        answers = self._each(dict.fromkeys(self.shards, lambda store: store.heartbeat(holder))).values()
        return {id_ for asked in answers if not isinstance(asked, OverloadedError) for id_ in asked}

    def holder_ended(self, holder: str) -> None:
        """Tell all shards but lost ones, where it is dead as soon as its heartbeat isn't heard."""
        self._there()
        self._each(dict.fromkeys(self.shards, lambda store: store.holder_ended(holder)))

    # The store as a whole

    def outside_name(self, new: str) -> str:
        there = self._there()
        names = self._all({shard: lambda store: store.outside_name("") for shard in there})
        name = next(filter(None, names.values()), "") or there[0].do(lambda store: store.outside_name(new))
        if name:
            self._all({shard: lambda store: store.outside_name(name) for shard in there})
        return name

    def take_dropped(self, limit: int) -> Sequence[bytes]:
        return self._up_to(limit, RedisStore.take_dropped)

    def ping(self) -> str | None:
        problems = {
            shard: answer
            for shard, answer in self._each(dict.fromkeys(self.shards, RedisStore.ping)).items()
            if isinstance(answer, OverloadedError)
        }
        if len(problems) == len(self.shards):
            raise next(iter(problems.values()))
        why = {
            shard: "it gives no answer" if shard.lost else str(error).rstrip(".") for shard, error in problems.items()
        }
        said = ", ".join(f"{shard.label} ({reason})" for shard, reason in why.items())
        return f"but for the sessions on {said}" if said else None

    def close(self) -> None:
        self._threads.shutdown()
        for shard in self.shards:
            shard.close()


def _with(step: Callable[[RedisStore, T], Any], given: T, store: RedisStore) -> Any:
    return step(store, given)


def _with_blobs(commit: Commit, more: Mapping[str, bytes]) -> Commit:
    named = {blob: more[blob] for blob in commit.parts.values() if blob in more and blob not in commit.blobs}
    return commit._replace(blobs={**commit.blobs, **named}) if named else commit
