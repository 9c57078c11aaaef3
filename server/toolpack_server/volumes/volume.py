"""Volumes: content of an environment that is stored as changes, such as a database or a tree of files.

A volume is a field of an environment, or an attribute of an instance that the environment holds. A volume isn't stored
with the rest of the environment. Its content is a *chain* of at most `MAX_PIECES` *pieces*. The first piece contains
the whole content, and each later piece contains the changes since the previous piece. Each piece is an ordinary part of
the session, stored under the number of its *slot*, so stores, forks, resets and trimming need no code for volumes. A
commit adds one piece. If the chain is full, the newest pieces are merged into one.

A call uses a volume through a *working copy*: a file, a folder or an object with the content of the chain. Working
copies are a cache (`volumes/scratch.py`), so any working copy can be lost at any time.

Neither this module nor the rest of the core depends on a kind of volume. A kind consists of a subclass of `Volume` and
a subclass of `WorkingCopy`. A feature lists its kinds in `volumes`.

States of a working copy
------------------------

========= ================================== =======================================================================
State     Who can use it                     Next state
========= ================================== =======================================================================
shared    any reader of the version that     discarded: its last handle is gone, the scratch folder needs space, or
          its key names; nothing changes it  the `Volume.abandon` of a reader can't prove that the copy is unchanged

open      one call, which can change it; it  pending: all volumes of the call have finished, and their pieces exist
          was the session's private copy,
          or is a clone of a shared copy     private: `Volume.abandon` proves that nothing was written

                                             discarded: in every other case

pending   the session, by its handle; no     open: the session's next call that can change it
          other session can find it, as the
          ids in its key aren't stored yet   private: its commit was acknowledged

                                             discarded: the session's state is dropped, for example because the
                                             commit was refused

private   the session, by its handle; forks  open: the session's next call that can change it
          and readers, by its key
                                             shared: a fork or a reader has found it

                                             discarded: the session ends, or the worker drops its state

discarded no caller                          `WorkingCopy.discard` runs after its last reader
========= ================================== =======================================================================

So an open working copy is kept only in two cases: its pieces exist, or it is proven unchanged. In all other cases, such
as a missed deadline, the end of a process or a bug in the server, it is discarded. The key of a working copy consists
of the blob ids of its chain. Each sealed piece gets a new id, and other sessions learn the id only from the commit.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic_core import CoreSchema, core_schema

from toolpack_server.base.errors import StateDamagedError
from toolpack_server.base.settings import Settings
from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.volumes.scratch import CopyHandle, Scratch
from toolpack_server.volumes.working_copy import Key, PieceInfo, WorkingCopy

MAX_PIECES = 7
SEPARATOR = ":"

SLOTS = MAX_PIECES + 1
"""Maximum number of parts in a chain, which are its pieces and an end marker."""

VOID = b""
"""Payload of an emptied slot, used because a store can't delete a part."""

_END_PREFIX = b"end "  # an end marker contains the last piece's id, so a chain without that piece is detected

_DIGEST_BYTES = 16


class Body(NamedTuple):
    """Content of one piece in the format of its kind of volume: a few JSON values, and bytes."""

    head: Mapping[str, Any]
    data: bytes | memoryview


BYTES_PER_ENTRY = 3200  # `max_entries` is `max_bytes` divided by this number, for example 20,971 files in 64 MiB


class Limits(NamedTuple):
    """Size limits of volumes, of their views, and of environments that are stored as a whole. See `Settings`.

    Attributes:
        max_bytes: Maximum size of the content.
        max_entries: Maximum number of named entries in a volume, such as files.
        view_rows: Maximum number of rows of a table in a view.
        view_seconds: Time limit for creating a view.
        lazy_min_bytes: Minimum size of an environment that is stored in pieces. 0 means that none is.
    """

    max_bytes: int = 64 * 2**20
    max_entries: int = 64 * 2**20 // BYTES_PER_ENTRY
    view_rows: int = 1000
    view_seconds: float = 30
    lazy_min_bytes: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.max_volume_bytes,
            settings.max_volume_bytes // BYTES_PER_ENTRY,
            settings.max_view_rows,
            settings.timeout_seconds,
            settings.lazy_min_bytes,
        )


class Content(ABC):
    """Base class of content that is stored as a chain of pieces: volumes, and large environments.

    Attributes:
        kind: Identifier of the kind in the names of parts and in schemas.
        is_shareable: Whether several readers can use one working copy at a time.
        mount: The call's access to the content. None outside of calls.
    """

    kind: ClassVar[str]
    is_shareable: ClassVar[bool] = True
    mount: "Mount | None" = None

    @classmethod
    @abstractmethod
    def open(cls, chain: "Chain", context: "VolumeContext") -> WorkingCopy:
        """Return a working copy with the content of a chain.

        Raises:
            StateDamagedError: The pieces can't be read.
        """

    @classmethod
    @abstractmethod
    def sizes(cls, body: Body) -> Mapping[Key, int]:
        """Return the sizes that `finish` returned for a piece after the first one, in bytes by key."""

    @abstractmethod
    def finish(self) -> Mapping[Key, int]:
        """End the use by a function that returned. Return the bytes of each page or file that it changed, by key.

        Afterwards, only `body` can be called, and `mount.copy()` contains the current content. The server calls
        `finish` only if the call used the working copy and isn't read-only.

        Raises:
            Exception: The content can't be stored. The call fails, and the working copies of all its volumes are
                discarded.
        """

    @abstractmethod
    def body(self, keys: Mapping[Key, int] | None) -> Body:
        """Return a piece with the current content or the removal of these keys. None means the whole content."""

    @abstractmethod
    def abandon(self) -> bool:
        """End the use by a function that failed or is read-only. Return whether the working copy is proven unchanged.

        Proof is, for example, an empty write-ahead log. Without proof, return False or raise any exception. In all
        cases, close everything that the function opened.
        """

    def resources(self) -> Sequence[Any]:
        """Return objects that the function got from this content and that become unusable after the call."""
        return ()

    def explain(self, error: BaseException) -> BaseException:
        """Return an error raised by a function, with details that the function's author needs but couldn't know.

        If the returned error is a `RequestError`, the server refuses the call with this error.
        """
        return error


class Volume(Content):
    """Base class of volumes, such as `Database` and `Files`. Authors put instances into their environments.

    Each subclass is a kind of volume. It must define `kind` and the abstract methods: `__deepcopy__`, `build`, `parse`,
    `load`, `sizes`, `finish`, `body`, `abandon`, `view`, `patch` and `export`.

    An instance is used in one of two ways:

    - An author creates it. It works on its own, without a server, and `build` returns its content.
    - The server passes it to a call. Then `mount` is set, and the instance uses the working copy `mount.copy()`. The
      first use creates the copy, or takes it from the scratch folder.

    Attributes:
        alternative_types: Other types that a function's parameter can declare to get this volume. Each type is mapped
            to the name of the method that returns an object of this type.
        written_by: Name and version of the library that lays out the bytes. Needed only if another version of the
            library might lay out the same content differently; else "".
    """

    alternative_types: ClassVar[Mapping[type, str]] = {}
    written_by: ClassVar[str] = ""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            # Pydantic uses this only for the default value in a schema. `view` creates the JSON of environments.
            serialization=core_schema.plain_serializer_function_ser_schema(lambda _: None),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "object", "x-toolpack": cls.kind}

    # Unhashable, because pydantic copies only unhashable default values for each environment.
    __hash__ = None  # type: ignore[assignment]

    @abstractmethod
    def __deepcopy__(self, memo: Any) -> Self:
        """Return an independent instance with the same content, as if an author had created it."""

    @abstractmethod
    def build(self, limits: Limits) -> Body:
        """Return the first piece: the whole content, from an author's code or from a client's JSON.

        Raises:
            InvalidParamsError: The content is invalid or too large. The message gives the reason.
        """

    @classmethod
    @abstractmethod
    def parse(cls, value: Any) -> Self:
        """Return an instance from the JSON value of `create_session(environment=…)`.

        The value is untrusted. `parse` runs no code that the value contains, such as SQL. `build` does.

        Raises:
            ValueError: The value isn't valid for this volume.
        """

    def adopt(self, default: "Volume") -> None:
        """Copy the options of the field's default value, but not its content. Called after `parse`."""

    @classmethod
    def json_schema(cls, default: "Volume | None") -> Mapping[str, Any]:  # noqa: ARG003 - kinds use it
        """Return additional fields for the schema of the volume, which `list_toolpacks` shows."""
        return {}

    @classmethod
    def open(cls, chain: "Chain", context: "VolumeContext") -> WorkingCopy:
        bodies, pieces = chain.read_pieces(cls)
        try:
            loaded = cls.load(bodies, context)
        except ValueError as error:
            raise damaged_error(chain.name) from error
        loaded.pieces = pieces
        return loaded

    @classmethod
    @abstractmethod
    def load(cls, bodies: Sequence[Body], context: "VolumeContext") -> WorkingCopy:
        """Return a working copy with the content of a chain.

        Args:
            bodies: The pieces of the chain, in order.

        Raises:
            ValueError: The pieces can't be read.
        """

    def convert(self, target: type) -> Any:
        """Return this volume as an object of one of the `alternative_types`."""
        return getattr(self, self.alternative_types[target])()

    @abstractmethod
    def view(self) -> Any:
        """Return the content as a JSON value.

        Raises:
            ResultError: The content can't be read, or exceeds a limit. `at` and `patch` also raise this error.
        """

    def at(self, steps: Sequence[str], after: str | None, limit: int | None) -> Any:  # noqa: ARG002 - kinds use them
        """Return the JSON value that the steps of a JSON Pointer lead to in the view.

        This method creates the whole view, and ignores `after` and `limit`. A kind can override it to read less.

        Args:
            after: Begin after this key of the object. None means the first key.
            limit: Maximum number of keys. None means as many as the view contains.

        Raises:
            LookupError: The view contains no value there.
        """
        value = self.view()
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
        return value

    @abstractmethod
    def patch(self, after: Self, path: str, *, text_diffs: bool) -> list[dict[str, Any]]:
        """Return the JSON Patch operations that turn this volume's view into the view of `after`.

        Args:
            after: The other volume.
            path: JSON Pointer of the volume, the prefix of the operations' paths.
            text_diffs: Whether to show changes to long texts as diffs.
        """

    @abstractmethod
    def export(self) -> bytes:
        """Return the content as a file that other programs can read."""

    @classmethod
    def digest(cls, body: Body) -> str:
        """Return a digest of a piece. A replay of the same operations must produce the same digest."""
        hashed = hashlib.blake2b(orjson.dumps(dict(body.head), option=orjson.OPT_SORT_KEYS), digest_size=_DIGEST_BYTES)
        hashed.update(body.data)
        return hashed.hexdigest()


class VolumeKinds(dict[str, type[Volume]]):
    """Kinds of volumes by name. Looking up an unknown kind raises `StateDamagedError`."""

    def __init__(self, kinds: Iterable[type[Volume]]) -> None:
        super().__init__((kind.kind, kind) for kind in kinds)

    def __missing__(self, name: str) -> type[Volume]:
        raise StateDamagedError(
            f"No feature of this server provides volumes of the kind {name!r}. Start the server with the feature that "
            "provides them."
        )


@dataclass(frozen=True, slots=True)
class VolumeContext:
    """The kinds of volumes, the scratch folder and the limits in one process."""

    kinds: Mapping[str, type[Volume]]
    scratch: Scratch
    limits: Limits


class Chain:
    """The pieces of one volume at one version, in order.

    Args:
        name: The volume's name for clients: its toolpack and the path of its attribute, such as `shop/db`.
        parts: Names of its parts, by slot.
        ids: Blob ids of the parts, by slot, or "" for an unknown id. If all ids are known, they are the cache key of
            the working copy.
        read: Function that returns the payload of a part.
    """

    def __init__(
        self, name: str, kind: str, parts: Sequence[str], ids: Sequence[str], read: Callable[[str], bytes]
    ) -> None:
        self.name = name
        self.kind = kind
        self.parts = parts
        self.key: tuple[str, ...] | None = (name, *ids) if all(ids) else None
        self._read = read

    def read_pieces(
        self, kind: type[Content], first: PieceInfo | None = None
    ) -> tuple[list[Body], tuple[PieceInfo, ...]]:
        """Read and check all pieces. Return their content and metadata, in the order of the chain.

        Args:
            first: Metadata of the first piece, if the caller already has its content. The returned content then omits
                this piece.

        Raises:
            StateDamagedError: A piece can't be read, or doesn't belong to this chain.
        """
        # A store could lose the newest piece, or return a piece of another version. So each piece contains the id of
        # the previous piece, and the end markers in the slots after the last piece contain the last piece's id.
        bodies: list[Body] = []
        pieces: list[PieceInfo] = [] if first is None else [first]
        unused_payloads: list[bytes] = []  # payloads of the slots after the last piece
        for slot, part in enumerate(self.parts):
            if part != part_name(self.name, self.kind, slot):
                raise damaged_error(self.name)
            if first is not None and slot == 0:
                continue
            payload = self._read(part)
            if is_void(payload):
                unused_payloads.append(payload)
                continue
            try:
                body, piece_id, previous = _unpack(payload)
                sizes = kind.sizes(body) if pieces else None
            except (LookupError, TypeError, ValueError) as error:
                raise damaged_error(self.name) from error
            if unused_payloads or previous != (pieces[-1].id if pieces else ""):
                raise damaged_error(self.name)
            bodies.append(body)
            pieces.append(PieceInfo(piece_id, sizes, len(payload)))
        if not pieces or not {VOID, *(_end_marker(piece.id) for piece in pieces)}.issuperset(unused_payloads):
            raise damaged_error(self.name)
        return bodies, tuple(pieces)


@dataclass(slots=True)
class Mount:
    """Access of one call, or one reader, to a volume.

    Attributes:
        read_only: Reason why the volume must refuse changes, or "" if it can be changed. Refusal matters because other
            calls might read the same working copy.
        pinned: Whether the clock and the random generators are pinned during the call.
        handle: Handle of the session's own working copy. While the call uses the volume, this is the handle of the copy
            that the call reads, or from which its working copy was cloned.
        working_copy: The working copy. None until the call uses the volume. If the call isn't read-only, the copy is
            open, so no other call uses it.
        error: Exception raised when creating the working copy. It fails the request even if the function catches it.
        ended: Whether the call has ended. Checked because its function might still refer to the volume.
    """

    chain: Chain
    volume: type[Content]
    context: VolumeContext
    read_only: str = ""
    pinned: bool = False
    handle: CopyHandle | None = None
    working_copy: WorkingCopy | None = None
    error: Exception | None = None
    ended: bool = False

    def copy(self) -> WorkingCopy:
        """Return the working copy. A call that isn't read-only can change it.

        Raises:
            ValueError: The call has ended.
            Exception: The working copy can't be created. `error` also holds this exception.
        """
        if self.working_copy is None:
            if self.ended:
                raise self.too_late()
            scratch, key = self.context.scratch, self.chain.key
            with uninterruptible:  # a deadline exception between `take` and the assignment would lose the copy
                try:
                    if self.read_only and self.volume.is_shareable:
                        self.handle = scratch.share(key, self.handle, self._load)
                        self.working_copy = self.handle.entry.copy
                    else:
                        self.working_copy, self.handle = scratch.take(key, self.handle, self._load)
                except Exception as error:
                    self.error = error
                    raise
        return self.working_copy

    def too_late(self) -> ValueError:
        """Return the error for a use of the volume after its call."""
        return ValueError(f"{self.chain.name!r} belongs to a call that has ended, and can't be used any more")

    def _load(self) -> WorkingCopy:
        return self.volume.open(self.chain, self.context)


def part_name(name: str, kind: str, slot: int) -> str:
    """Return the name of the part for a slot of a volume."""
    return f"{name}{SEPARATOR}{kind}{SEPARATOR}{slot}"


def is_void(payload: bytes) -> bool:
    """Return whether a slot contains no piece, because its payload is void or an end marker."""
    return payload == VOID or payload.startswith(_END_PREFIX)


def _end_marker(piece_id: str) -> bytes:
    return _END_PREFIX + piece_id.encode()


def is_piece(part: str) -> bool:
    """Return whether a part of a session stores a slot of a volume's chain."""
    return SEPARATOR in part


def kind_of(piece: str) -> str:
    """Return the kind of the volume that a part belongs to."""
    return piece.split(SEPARATOR)[-2]


def live_name(part: str) -> str:
    """Return the key of a part's live object in a session's state. All parts of a volume have the same key."""
    name, separator, _ = part.partition(SEPARATOR)
    return name + separator


def volume_of(part: str) -> str:
    """Return the name of the volume that a part belongs to."""
    return part.partition(SEPARATOR)[0]


def first_piece(kind: str, body: Body) -> bytes:
    """Return the payload of the first piece of a new chain."""
    return _pack(kind, "", body)[1]


def extend_chain(
    chain: Chain, volume: Content, pieces: tuple[PieceInfo, ...], changed: Mapping[Key, int]
) -> tuple[dict[str, bytes], tuple[PieceInfo, ...]]:
    """Return the payloads of the parts that a change writes, and the metadata of the chain's pieces after the change.

    If the chain is full, the newest pieces are merged with the change. As few pieces as possible are merged, but each
    remaining piece must be at least as large as all pieces after it together.
    """
    slot = len(pieces)
    if slot == MAX_PIECES:
        slot, changed = _plan_merge(pieces, changed)
    piece_id, payload = _pack(chain.kind, pieces[slot - 1].id if slot else "", volume.body(changed if slot else None))
    payloads = {part_name(chain.name, chain.kind, slot): payload}
    # The slots after the new piece get an end marker with its id, so markers of another version aren't accepted.
    unused_slots = range(slot + 1, max(slot + 1, len(pieces)) + 1)
    payloads |= {part_name(chain.name, chain.kind, unused): _end_marker(piece_id) for unused in unused_slots}
    return payloads, (*pieces[:slot], PieceInfo(piece_id, changed if slot else None, len(payload)))


def _plan_merge(pieces: tuple[PieceInfo, ...], changed: Mapping[Key, int]) -> tuple[int, Mapping[Key, int]]:
    """Return the slot of the first piece to merge with a change, and the sizes of all keys in the merged piece."""
    # Find the newest slot such that each piece before the slot is at least as large as everything after that piece.
    for slot in range(len(pieces) - 1, 0, -1):
        changed = {**(pieces[slot].sizes or {}), **changed}
        following = sum(changed.values())
        for previous in reversed(pieces[:slot]):
            if previous.size < following:
                break
            following += previous.size
        else:
            return slot, changed
    return 0, changed


def _pack(kind: str, previous: str, body: Body) -> tuple[str, bytes]:
    """Return the id and the payload of a piece. `previous` is the id of the piece before it."""
    hashed = hashlib.blake2b(orjson.dumps([kind, previous, body.head]), digest_size=_DIGEST_BYTES)
    hashed.update(body.data)
    piece_id = hashed.hexdigest()
    return piece_id, b"".join((orjson.dumps([kind, piece_id, previous, body.head]), b"\n", body.data))


def _unpack(payload: bytes) -> tuple[Body, str, str]:
    """Return the content of a piece, its id, and the id of the previous piece. The caller has checked its seal."""
    end = payload.index(b"\n")
    _kind, piece_id, previous, head = orjson.loads(payload[:end])
    return Body(head, memoryview(payload)[end + 1 :]), piece_id, previous


def read_piece(payload: bytes) -> Body:
    """Return the content of a piece.

    Raises:
        ValueError: The payload isn't a piece.
    """
    return _unpack(payload)[0]


def damaged_error(name: str) -> StateDamagedError:
    return StateDamagedError(
        f"The stored pieces of {name!r} don't belong together: they were damaged or exchanged. Restore a backup, or "
        "close the session."
    )


# Volumes in environments


def holders(environment: Any, *, of_instances: bool) -> Iterator[tuple[str, Any]]:
    """Yield each object that can have volumes as attributes, with the prefix of its attributes' paths.

    These objects are the environment itself, or the instances in its fields.
    """
    fields = vars(environment)
    if "root" in fields and getattr(type(environment), "__pydantic_root_model__", False):
        yield "", fields["root"]
    elif of_instances:
        yield from ((f"{name}.", instance) for name, instance in fields.items())
    else:
        yield "", environment


def take_out(environment: Any, *, of_instances: bool) -> dict[str, Volume]:
    """Remove the volumes from an environment, and return them by path."""
    volumes: dict[str, Volume] = {}
    for prefix, holder in holders(environment, of_instances=of_instances):
        fields = getattr(holder, "__dict__", {})
        for name in [name for name, value in fields.items() if isinstance(value, Volume)]:
            volumes[prefix + name] = fields.pop(name)
            getattr(holder, "__pydantic_fields_set__", set()).discard(name)
    return volumes


def put_in(environment: Any, path: str, volume: Volume, *, of_instances: bool) -> bool:
    """Set a volume at its path. Return False if the environment has no object that can hold this attribute."""
    for prefix, holder in holders(environment, of_instances=of_instances):
        if path.startswith(prefix) and "." not in path.removeprefix(prefix):
            holder.__dict__[path.removeprefix(prefix)] = volume
            return True
    return False
