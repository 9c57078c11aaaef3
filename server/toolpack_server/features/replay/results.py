"""The shapes of replays and bundles.

Types only, as in `server/toolpack_server/protocol/results.py`.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from toolpack_server.protocol.results import Session


class SessionSeeds(TypedDict):
    """Its chance is drawn from `seed`; its time begins at `clock`, and each call takes `clock_step_seconds`."""

    seed: NotRequired[str]
    clock: NotRequired[str]
    clock_step_seconds: NotRequired[float]


class Difference(TypedDict):
    """How a call came out differently when it was run again; texts are cut at 2,000 characters."""

    index: int
    what: Literal["error", "result", "nested", "state"]
    recorded: NotRequired[str]
    replayed: NotRequired[str]


class Versions(TypedDict):
    """The version of a toolpack with which a session was created, and the one that is loaded, if it has one."""

    recorded: str
    replayed: NotRequired[str]


class Replay(TypedDict):
    """The new session, how many records were run again in it, and the first difference.

    `complete` is true if all records were run again without a difference. `other_versions` has the toolpacks that were
    at another version when the session was created.
    """

    session: Session
    replayed: int
    complete: bool
    diverged: NotRequired[Difference]
    other_versions: dict[str, Versions]


class CodeOf(TypedDict):
    """A digest of files of code, and the version of the distribution that they came with, if they did."""

    version: NotRequired[str]
    digest: str


class Code(TypedDict):
    """What runs here: Python's version without its last number, the server, and the toolpacks by name."""

    python: str
    server: CodeOf
    toolpacks: dict[str, CodeOf]


class Bundle(TypedDict):
    """A session as one file, in base64, its size in bytes, and the code that has written it."""

    format: str
    size: int
    bundle: str
    code: Code
