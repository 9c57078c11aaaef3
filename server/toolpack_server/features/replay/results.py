"""Result types of replays and bundles."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic can't use `typing.TypedDict` before Python 3.12

from toolpack_server.protocol.results import Session


class SessionSeeds(TypedDict):
    """Random numbers come from `seed`. The clock starts at `clock`, and each call adds `clock_step_seconds` to it."""

    seed: NotRequired[str]
    clock: NotRequired[str]
    clock_step_seconds: NotRequired[float]


class Difference(TypedDict):
    """A difference between a record and its replay.

    `index` is the record's index, and `what` names the value that differs. `recorded` and `replayed` are that value in
    the record and in the replay, as a string of at most 2,000 characters. A missing field means no value, for example
    no error.
    """

    index: int
    what: Literal["error", "result", "nested", "state", "event"]
    recorded: NotRequired[str]
    replayed: NotRequired[str]


class Versions(TypedDict):
    """The version of a toolpack when a session was created (`recorded`), and its loaded version (`replayed`)."""

    recorded: str
    replayed: NotRequired[str]


class Replay(TypedDict):
    """The new session, the number of records that were run again in it, and the first difference if there is one.

    `complete` is true if all records were run again without a difference. `other_versions` lists the toolpacks
    whose loaded version differs from the version when the original session was created.
    """

    session: Session
    replayed: int
    complete: bool
    diverged: NotRequired[Difference]
    other_versions: dict[str, Versions]


class CodeOf(TypedDict):
    """The digest of code files, and the version of the distribution that contains them, if there is one."""

    version: NotRequired[str]
    digest: str


class Code(TypedDict):
    """The code of a server: Python's version (major and minor), the server, and the toolpacks by name."""

    python: str
    server: CodeOf
    toolpacks: dict[str, CodeOf]


class Bundle(TypedDict):
    """A session as one file: its format, size in bytes, content in base64, and the code that wrote it."""

    format: str
    size: int
    bundle: str
    code: Code
