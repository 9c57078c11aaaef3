"""Volumes: what an environment holds that is stored by what changes, such as a database or a tree of files.

A volume is a field of an environment, or an attribute of the instance of a class. It isn't written with the rest of the
environment: its content is a *chain* of at most `MAX_PIECES` *pieces*. The first holds everything, each later one what
has changed after it. Each piece is an ordinary part of the session, so stores, forks, resets and trimming know nothing
of volumes. A commit adds one piece; where the chain is full, the newest are merged into one.

While it is used, a volume is a *working copy*: a file, a folder or an object that equals its chain. Working copies are
a cache (`volumes/scratch.py`); they may be lost at any time.

This module and the rest of the core know chains and no kind of volume. A kind is a subclass of `Volume` and
one of `WorkingCopy`, listed in the `volumes` of a feature.

The life of a working copy
--------------------------

========== ==================================== ======================================================================
State      Who can use it                       Moved on by
========== ==================================== ======================================================================
shared     whoever may read the version to      `Scratch`, when nobody has its place, or room is needed: gone. A
           which its key belongs; nobody        reader's `Volume.abandon` doesn't show that it is as it was: gone
           changes it
unproven   one call, which may change it: it    all of the call's volumes finish, and their pieces are made: proven.
           was the session's own, or is a       `Volume.abandon` shows that nothing was written: the session's own
           clone of a shared one                again. Anything else, whatever it is: gone
proven     the session, which has its place;    the session's next call that may change it: unproven. Its commit is
           nobody else can find it, as nobody   acknowledged: the session's own. The session's state is dropped, for
           else has the ids of its pieces yet   example because the commit was refused: gone
the        the session; a fork and a reader     the session's next call that may change it: unproven. A fork or a
session's  find it by its key                   reader finds it: shared. The session ends or is forgotten: gone
own
gone       nobody                               `WorkingCopy.discard`, once nobody reads it
========== ==================================== ======================================================================

So there are two ways out of *unproven* with the working copy, and each needs a proof; an error, a deadline, the end of
a process and a fault of our own give none. The key of a working copy consists of the ids of its chain's blobs. They are
drawn when a piece is sealed, and leave the session's state with the commit alone.
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
from toolpack_server.volumes.scratch import Place, Scratch
from toolpack_server.volumes.working_copy import Key, PieceShape, Shape, WorkingCopy

MAX_PIECES = 7
SEPARATOR = ":"

SLOTS = MAX_PIECES + 1
"""How many parts a chain may have: its pieces, and one that says where they end."""

VOID = b""
"""The payload of a slot that holds no piece any more; a store forgets no part."""

_END = b"end "  # what such a payload begins with if it names the last piece, which so can't be left out unnoticed

_DIGEST_BYTES = 16


class Body(NamedTuple):
    """What a piece holds, as its kind writes it: a few JSON values, and bytes."""

    head: Mapping[str, Any]
    data: bytes | memoryview


BYTES_PER_ENTRY = 3200  # on average at least, in the largest tree: 20,971 files in 64 MB


class Limits(NamedTuple):
    """How large a volume may be, and how long it may be read for a view; see `Settings`.

    Attributes:
        max_bytes: The bytes of all that it holds.
        max_entries: How many things with names of their own it may hold, such as files.
        view_rows: How many rows of a table a view shows.
        view_seconds: How long it may take to make one.
    """

    max_bytes: int = 64 * 2**20
    max_entries: int = 64 * 2**20 // BYTES_PER_ENTRY
    view_rows: int = 1000
    view_seconds: float = 30

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.max_volume_bytes,
            settings.max_volume_bytes // BYTES_PER_ENTRY,
            settings.max_view_rows,
            settings.timeout_seconds,
        )


class Volume(ABC):
    """What an author puts into an environment; a kind of volume derives from it.

    A kind must have `kind`, and what is abstract here: `__deepcopy__`, `build`, `parse`, `load`, `sizes`, `finish`,
    `body`, `abandon`, `view`, `patch` and `export`.

    An object is in one of two states. An author has made it: then it works on its own, without a server, and `build`
    gets what it holds. Or it was given to a call: then `mount` says how it may be used, and the rest is done with the
    working copy, `mount.copy()`, which is made, or taken from the scratch folder, when it is first asked for.

    Attributes:
        kind: A word that stands for the class in the names of parts and in schemas.
        given_as: The types as which a function may take it besides its own class, each with the name of the method that
            gives that.
        written_by: What lays out its bytes, with its version, if another version may lay out the same content in
            another way; else "".
        mount: How a call may use it; None if an author has made it.
    """

    kind: ClassVar[str]
    given_as: ClassVar[Mapping[type, str]] = {}
    written_by: ClassVar[str] = ""
    mount: "Mount | None" = None

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            # Only for the default in a schema: JSON of environments is made by `view`.
            serialization=core_schema.plain_serializer_function_ser_schema(lambda _: None),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "object", "x-toolpack": cls.kind}

    # Each environment has its own: pydantic copies a default only if it has no hash.
    __hash__ = None  # type: ignore[assignment]

    @abstractmethod
    def __deepcopy__(self, memo: Any) -> Self:
        """Get another one that an author might have made, which holds the same, to be changed on its own."""

    @abstractmethod
    def build(self, limits: Limits) -> Body:
        """Get all that it holds, as the first piece: what an author, or the JSON of a client, has put into it.

        Raises:
            InvalidParamsError: That can't be done; the text says why.
        """

    @classmethod
    @abstractmethod
    def parse(cls, given: Any) -> Self:
        """Make one from the JSON value of `create_session(environment=…)`; a `ValueError` if it doesn't fit.

        It isn't trusted: what has to be run for it is run by `build`.
        """

    def adopt(self, default: "Volume") -> None:  # noqa: B027 - most have nothing to take over
        """Take over, after `parse`, what the default of the same field says besides its content."""

    @classmethod
    def json_schema(cls, default: "Volume | None") -> Mapping[str, Any]:  # noqa: ARG003 - kinds use it
        """Get what `list_toolpacks` says of it besides its type."""
        return {}

    @classmethod
    @abstractmethod
    def load(cls, bodies: Sequence[Body], context: "VolumeContext") -> WorkingCopy:
        """Make a working copy from the pieces of a chain, the first one first.

        Raises:
            ValueError: They can't be read.
        """

    @classmethod
    @abstractmethod
    def sizes(cls, body: Body) -> Mapping[Key, int]:
        """Get the bytes of each key that a piece holds which isn't the first, as `finish` has said."""

    @abstractmethod
    def finish(self) -> Mapping[Key, int]:
        """End the use by a function that has returned: get the bytes of each key that it has changed.

        Nothing of it can be used any more afterwards, but `body`, and `mount.copy()` equals what it holds now. Only
        called if the working copy was used, and never if the call is read-only.

        Raises:
            Exception: What it holds can't be kept, so the call fails, and the working copies of all volumes that were
                asked to finish are discarded.
        """

    @abstractmethod
    def body(self, keys: Mapping[Key, int] | None) -> Body:
        """Get a piece that holds what these keys are now, and which of them are gone; None: everything."""

    @abstractmethod
    def abandon(self) -> bool:
        """End the use by a function that has failed or is read-only; say whether the working copy is as it was.

        True needs proof, such as that there is nothing in a log. Where that can't be had, it isn't known: then it says
        False, or raises anything. What the function has opened must be closed nevertheless.
        """

    def given(self, wanted: type) -> Any:
        """Get it as a type of `given_as`."""
        return getattr(self, self.given_as[wanted])()

    def lent(self) -> Sequence[Any]:
        """Get what it has given to the call that ends with it: to keep that is of no use."""
        return ()

    def explain(self, error: BaseException) -> BaseException:
        """Add to an error that leaves the function what its author couldn't know, and get it.

        A `RequestError` that is returned instead refuses the call.
        """
        return error

    @abstractmethod
    def view(self) -> Any:
        """Get what it holds as a JSON value.

        Raises:
            ResultError: That can't be read, or not within limits. So do `at` and `patch`.
        """

    def at(self, steps: Sequence[str], after: str | None, limit: int | None) -> Any:  # noqa: ARG002 - kinds use them
        """Get the JSON value to which the steps of a pointer lead in its view, reading no more than that needs.

        By default it is taken from the whole view, and all of it.

        Args:
            after: Begin after this key of an object; None: with the first one.
            limit: Get so many keys at most; None: as the view has them.

        Raises:
            LookupError: They lead to nothing.
        """
        found = self.view()
        for step in steps:
            found = found[int(step)] if isinstance(found, list) else found[step]
        return found

    @abstractmethod
    def patch(self, after: Self, path: str, *, text_diffs: bool) -> list[dict[str, Any]]:
        """Get the operations of a JSON Patch that leads from its view to that of another one, at this pointer."""

    @abstractmethod
    def export(self) -> bytes:
        """Get it as a file that other programs read."""

    @classmethod
    def digest(cls, body: Body) -> str:
        """Get a digest of what a piece holds, which is the same wherever the same was done."""
        hashed = hashlib.blake2b(orjson.dumps(dict(body.head), option=orjson.OPT_SORT_KEYS), digest_size=_DIGEST_BYTES)
        hashed.update(body.data)
        return hashed.hexdigest()


class VolumeKinds(dict[str, type[Volume]]):
    """The kinds of volumes that there are; to ask for another raises `StateDamagedError`."""

    def __init__(self, kinds: Iterable[type[Volume]]) -> None:
        super().__init__((kind.kind, kind) for kind in kinds)

    def __missing__(self, name: str) -> type[Volume]:
        raise StateDamagedError(
            f"A volume of the kind {name!r} can't be used, as no feature of this server has it: start the server with "
            "that feature."
        )


@dataclass(frozen=True, slots=True)
class VolumeContext:
    """What volumes need in the process where they are used."""

    kinds: Mapping[str, type[Volume]]
    scratch: Scratch
    limits: Limits


class Chain:
    """The pieces of one volume at one version.

    Args:
        name: What clients know it by: its toolpack and the path of its attribute, such as `shop/db`.
        parts: The names of its parts, by slot.
        ids: Their blob ids, "" where they aren't known; if they are, they are the key of its working copy.
        read: Gets the payload of a part.
    """

    def __init__(
        self, name: str, kind: str, parts: Sequence[str], ids: Sequence[str], read: Callable[[str], bytes]
    ) -> None:
        self.name = name
        self.kind = kind
        self.parts = parts
        self.key: tuple[str, ...] | None = (name, *ids) if all(ids) else None
        self._read = read

    def bodies(self, kind: type[Volume]) -> tuple[list[Body], Shape]:
        """Read and check all pieces, the first one first.

        Raises:
            StateDamagedError: They don't belong together, or can't be read.
        """
        bodies: list[Body] = []
        shape: list[PieceShape] = []
        ends: list[bytes] = []
        for slot, part in enumerate(self.parts):
            if part != part_name(self.name, self.kind, slot):
                raise _damaged(self.name)
            payload = self._read(part)
            if is_void(payload):
                ends.append(payload)
                continue
            try:
                body, piece_id, below = _unpack(payload)
                sizes = kind.sizes(body) if shape else None
            except (LookupError, TypeError, ValueError) as error:
                raise _damaged(self.name) from error
            if ends or below != (shape[-1].id if shape else ""):
                raise _damaged(self.name)
            bodies.append(body)
            shape.append(PieceShape(piece_id, sizes, len(payload)))
        if not bodies or not {VOID, *(_end(piece.id) for piece in shape)}.issuperset(ends):
            raise _damaged(self.name)
        return bodies, tuple(shape)


@dataclass(slots=True)
class Mount:
    """One volume as it was given to one call, or to one reader.

    Attributes:
        read_only: Why nothing may be written, which the kind must refuse: others read the same working copy. "" if it
            may be written.
        pinned: Time and chance are pinned while the call runs.
    """

    chain: Chain
    volume: type[Volume]
    context: VolumeContext
    read_only: str = ""
    pinned: bool = False
    place: Place | None = None  # where the last call of the session has left its working copy
    copied: WorkingCopy | None = None  # a call that isn't read-only has it alone, and it is unproven
    failed: Exception | None = None  # why it can't be used; the request is refused, whatever a function makes of that
    ended: bool = False  # so has the call: somebody has kept the volume

    def copy(self) -> WorkingCopy:
        """Get the working copy, which a call that isn't read-only may change.

        Raises:
            ValueError: The call has ended.
        """
        if self.copied is None:
            if self.ended:
                raise self.too_late()
            scratch, key = self.context.scratch, self.chain.key
            with uninterruptible:
                try:
                    if self.read_only:
                        self.place = scratch.share(key, self.place, self._load)
                        self.copied = self.place.kept.copy
                    else:
                        self.copied, self.place = scratch.take(key, self.place, self._load)
                except Exception as error:
                    self.failed = error
                    raise
        return self.copied

    def too_late(self) -> ValueError:
        """Get the error for whoever has kept the volume, and uses it when the call has ended."""
        return ValueError(f"{self.chain.name!r} was given to a call that has ended, and can't be used any more")

    def _load(self) -> WorkingCopy:
        bodies, shape = self.chain.bodies(self.volume)
        try:
            loaded = self.volume.load(bodies, self.context)
        except ValueError as error:
            raise _damaged(self.chain.name) from error
        loaded.shape = shape
        return loaded


def part_name(name: str, kind: str, slot: int) -> str:
    return f"{name}{SEPARATOR}{kind}{SEPARATOR}{slot}"


def is_void(payload: bytes) -> bool:
    """Whether the payload of a slot is no piece."""
    return payload == VOID or payload.startswith(_END)


def _end(piece_id: str) -> bytes:
    return _END + piece_id.encode()


def is_piece(part: str) -> bool:
    """Whether a part of a session is a piece of a volume."""
    return SEPARATOR in part


def kind_of(piece: str) -> str:
    """Get the kind of the volume to which a piece belongs."""
    return piece.split(SEPARATOR)[-2]


def live_name(part: str) -> str:
    """Get the name under which that is kept which equals a part: of a volume's parts one name for all."""
    name, separator, _ = part.partition(SEPARATOR)
    return name + separator


def volume_of(part: str) -> str:
    """Get the name of the volume that a piece belongs to."""
    return part.partition(SEPARATOR)[0]


def first_piece(volume: Volume, body: Body) -> bytes:
    """Get the payload of the first piece of a new chain."""
    return _pack(volume.kind, "", body)[1]


def added_pieces(
    chain: Chain, volume: Volume, shape: Shape, changed: Mapping[Key, int]
) -> tuple[dict[str, bytes], Shape]:
    """Get the payloads, by part, with which a chain goes on after a change, and its new shape.

    Where it is full, the newest pieces are merged: as few as keep each piece as large as all that follow it.
    """
    slot = len(shape)
    if slot == MAX_PIECES:
        slot, changed = _merged(shape, changed)
    piece_id, payload = _pack(chain.kind, shape[slot - 1].id if slot else "", volume.body(changed if slot else None))
    payloads = {part_name(chain.name, chain.kind, slot): payload}
    # Each slot above names a piece of this chain, so that none of another version can be taken for its end.
    above = range(slot + 1, max(slot + 1, len(shape)) + 1)
    payloads |= {part_name(chain.name, chain.kind, gone): _end(piece_id) for gone in above}
    return payloads, (*shape[:slot], PieceShape(piece_id, changed if slot else None, len(payload)))


def _merged(shape: Shape, changed: Mapping[Key, int]) -> tuple[int, Mapping[Key, int]]:
    """Get the slot of the piece that the newest ones and a change are merged into, and what it holds."""
    for slot in range(len(shape) - 1, 0, -1):
        changed = {**(shape[slot].sizes or {}), **changed}
        following = sum(changed.values())
        for below in reversed(shape[:slot]):
            if below.size < following:
                break
            following += below.size
        else:
            return slot, changed
    return 0, changed


def _pack(kind: str, below: str, body: Body) -> tuple[str, bytes]:
    hashed = hashlib.blake2b(orjson.dumps([kind, below, body.head]), digest_size=_DIGEST_BYTES)
    hashed.update(body.data)
    piece_id = hashed.hexdigest()
    return piece_id, b"".join((orjson.dumps([kind, piece_id, below, body.head]), b"\n", body.data))


def _unpack(payload: bytes) -> tuple[Body, str, str]:
    """Read a piece; its seal has shown that its bytes are those that were written."""
    end = payload.index(b"\n")
    _kind, piece_id, below, head = orjson.loads(payload[:end])
    return Body(head, memoryview(payload)[end + 1 :]), piece_id, below


def read_piece(payload: bytes) -> Body:
    """Get what a piece holds; raises as `Volume.sizes`."""
    return _unpack(payload)[0]


def _damaged(name: str) -> StateDamagedError:
    return StateDamagedError(
        f"The stored pieces of {name!r} don't belong together: they were damaged or exchanged. Restore a backup, or "
        "close the session."
    )


# Where environments hold volumes


def holders(environment: Any, *, of_instances: bool) -> Iterator[tuple[str, Any]]:
    """Yield the objects whose attributes may be volumes, each with what stands before their names in a path.

    These are the environment itself, or the instances of classes that it holds.
    """
    fields = vars(environment)
    if "root" in fields and getattr(type(environment), "__pydantic_root_model__", False):
        yield "", fields["root"]
    elif of_instances:
        yield from ((f"{name}.", instance) for name, instance in fields.items())
    else:
        yield "", environment


def take_out(environment: Any, *, of_instances: bool) -> dict[str, Volume]:
    """Take the volumes out of an environment, and get them by their paths."""
    found: dict[str, Volume] = {}
    for prefix, holder in holders(environment, of_instances=of_instances):
        fields = getattr(holder, "__dict__", {})
        for name in [name for name, value in fields.items() if isinstance(value, Volume)]:
            found[prefix + name] = fields.pop(name)
            getattr(holder, "__pydantic_fields_set__", set()).discard(name)
    return found


def put_in(environment: Any, path: str, volume: Volume, *, of_instances: bool) -> bool:
    """Put a volume where it was taken out of; say whether that is there: an environment may have only some fields."""
    for prefix, holder in holders(environment, of_instances=of_instances):
        if path.startswith(prefix) and "." not in path.removeprefix(prefix):
            holder.__dict__[path.removeprefix(prefix)] = volume
            return True
    return False
