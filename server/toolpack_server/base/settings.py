"""Every setting of the server, in one class.

A setting is an environment variable `TOOLPACK_<NAME>`. The table in docs/operate/operate.md lists it with its default
and the first sentence of its description; a test compares the two.
"""

import difflib
import os
import re
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from toolpack_server.base.errors import SettingsError
from toolpack_server.base.fixed_limits import FixedLimits
from toolpack_server.base.store_url import SQLITE, StoreUrl

PREFIX = "TOOLPACK_"
BOM = "\ufeff"  # some editors put it at the start of a file, and so into a variable that is read from one
MIN_TOKEN_LENGTH = 8
SEQUENCES = (tuple, list, set, frozenset)
THREAD = "thread"
"""The isolation that every server has."""

_FIXED = {*FixedLimits.model_fields}

Seconds = Annotated[float, Field(le=315_360_000)]
"""At most ten years: neither infinity nor what no clock of the system takes."""

S = TypeVar("S", bound="_FromEnvironment")
F = TypeVar("F", bound="FeatureSettings")


def split_list(value: str, separator: str) -> list[str]:
    return [part.strip() for part in value.split(separator) if part.strip()]


def _split_folders(value: Any) -> Any:
    return split_list(value.removeprefix(BOM), ":") if isinstance(value, str) else value


def _split_pairs(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    pairs: dict[str, str] = {}
    parts = [part.strip() for part in value.removeprefix(BOM).split(",")]
    if value and not any(parts):  # whoever sets it wants tokens: serving everybody would be the opposite
        raise ValueError("there is no token in it: give name:token pairs, or unset it")
    for number, part in enumerate(filter(None, parts), 1):
        name, colon, token = (text.strip() for text in part.partition(":"))
        if not (name and colon and token):
            raise ValueError(f"entry {number} is not of the form name:token")
        if len(token) < MIN_TOKEN_LENGTH or not re.fullmatch(r"[!-~]+", token):
            raise ValueError(
                f"the token of {name!r} is not {MIN_TOKEN_LENGTH} or more visible ASCII characters: make one with "
                f"`openssl rand -hex 16`"
            )
        if name in pairs:
            raise ValueError(f"the name {name!r} is given twice")
        if token in pairs.values():
            raise ValueError(f"the token of {name!r} belongs to another owner, too")
        pairs[name] = token
    return pairs


class _FromEnvironment(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, validate_default=True)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, **given: Any) -> None:
        """Take what is given, then what the environment says, then the defaults."""
        names = self.variables()
        said = {names[name.upper()]: value for name, value in os.environ.items() if name.upper() in names}
        super().__init__(**{**said, **given})

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Strip a text, and split that of a list at its commas, unless the field reads it itself."""
        field = cls.model_fields[str(info.field_name)]
        if not isinstance(value, str) or any(isinstance(each, BeforeValidator) for each in field.metadata):
            return value
        text = value.removeprefix(BOM).strip()
        is_list = any(get_origin(each) in SEQUENCES for each in (field.annotation, *get_args(field.annotation)))
        return split_list(text, ",") if is_list else text

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Get the names of the settings by their environment variables, in order."""
        return {f"{cls.prefix}{name.upper()}": name for name in cls.model_fields if name not in _FIXED}

    @classmethod
    def described(cls) -> dict[str, tuple[str, str]]:
        """Get the default of each setting, "" if that is nothing, and what it means, by its environment variable."""
        found = {}
        for variable, name in cls.variables().items():
            field = cls.model_fields[name]
            default = field.get_default(call_default_factory=True)
            text = str(default).lower() if isinstance(default, bool) else str(default)
            sentence = re.match(r".*?\.(?=\s|$)", str(field.description))
            found[variable] = "" if default in (None, "", (), {}) else text, sentence[0] if sentence else ""
        return found


class FeatureSettings(_FromEnvironment):
    """The settings of a feature: a subclass is written `class TasksSettings(FeatureSettings, feature="tasks")`.

    Each field, which has a default and a description, is an environment variable `TOOLPACK_<FEATURE>_<FIELD>`. Blanks
    around a text aren't part of it; the members of a list are separated by commas.
    """

    def __init_subclass__(cls, *, feature: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.prefix = f"{PREFIX}{feature.upper()}_"


class Settings(_FromEnvironment, FixedLimits):
    """The settings of one server; each field is an environment variable, and some are also flags.

    The limits that it has beside them can be given in code only.
    """

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(1, ge=1, le=64, description="Worker processes.")
    store: str = Field(
        "",
        description="Store URL: memory:, sqlite:///path, redis://host or postgresql://host/db; default: SQLite in the "
        "data directory.",
    )
    data_dir: Path = Field(Path(".toolpack-server"), description="Folder for the embedded store and the key.")
    pack_dir: Annotated[tuple[Path, ...], BeforeValidator(_split_folders)] = Field(
        (), description="Folders with toolpacks, separated by colons."
    )
    packs: tuple[str, ...] = Field((), description="Names of the toolpacks to load.")
    tokens: Annotated[dict[str, SecretStr], BeforeValidator(_split_pairs)] = Field(
        default_factory=dict, description="Bearer tokens, as name:token pairs; each owner sees only their own sessions."
    )
    no_auth: bool = Field(False, description="Serve without tokens on an address that isn't loopback.")
    host_names: tuple[str, ...] = Field(
        (), description="Names by which the server may be addressed without tokens, beside its IP addresses."
    )
    secret_key: SecretStr | None = Field(
        None, min_length=16, description="Key of the hash on stored snapshots; default: one made in the data directory."
    )
    timeout_seconds: Seconds = Field(30, gt=0, description="Deadline of a call, where its function sets none.")
    max_threads: int = Field(
        256,
        ge=1,
        description="Functions that a worker runs at once but quick ones; of several owners one has half.",
    )
    isolation: str = Field(
        THREAD,
        description="Where toolpacks' code runs: in threads of the worker, or in processes of its own.",
    )
    shutdown_delay_seconds: Seconds = Field(
        0,
        ge=0,
        description="How long a stopping server takes requests, while /readyz tells balancers to send them elsewhere.",
    )
    drain_seconds: Seconds = Field(6, ge=0, description="How long a stopping server waits for running calls.")
    max_waiting: int = Field(
        10_000, ge=1, description="Calls that may wait for all sessions of a worker; of several owners one has half."
    )
    ttl_seconds: Seconds = Field(86_400, gt=0, description="How long a session lives after its last call.")
    keep_versions: int = Field(100, ge=0, description="Versions kept for fork, reset and diff, beside version 0.")
    cache_bytes: int = Field(
        40 * 2**20, ge=0, description="Memory, as estimated, for sessions that a worker keeps ready."
    )
    max_body_bytes: int = Field(
        16 * 2**20,
        ge=1024,
        description="Size of a request's body; an answer may have four times as much, or what a result or a list "
        "needs, an agent's request a sixteenth.",
    )
    log_calls: Literal["auto", "full", "json", "text", "off"] = Field(
        "auto",
        description="A line for each call on standard error: json, text, off, auto: text on a terminal, or full: auto "
        "with arguments and results.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least important lines that are logged; debug adds the tracebacks of functions."
    )
    verify_read_only: bool = Field(
        False, description="Compare the environment after every call of a read-only function, not only after some."
    )
    tokens_file: Path | None = Field(
        None, description="File of hashed tokens, one line each, from `toolpack-server token`."
    )
    console: bool = Field(True, description="Serve the console, a page for browsers, at /console/.")
    max_connections: int = Field(5000, ge=1, description="Connections that a worker holds at once.")
    max_sessions: int = Field(100_000, ge=1, description="Sessions that an owner may have at once.")
    max_result_bytes: int = Field(
        2**20, ge=1024, description="Size of a call's result as JSON; the trace keeps results up to a quarter of it."
    )
    max_environment_bytes: int = Field(32 * 2**20, ge=1024, description="Size of a toolpack's snapshot.")
    max_volume_bytes: int = Field(
        64 * 2**20, ge=2**16, description="Size of a database in an environment, or of all files of a tree in it."
    )
    scratch_dir: Path | None = Field(
        None,
        description="Folder in which databases and files lie while they are used; default: /dev/shm, if it has room.",
    )
    max_session_bytes: int = Field(
        256 * 2**20,
        ge=1024,
        description="Bytes that the calls of a session may store; kept versions have a thirty-second.",
    )
    max_owner_bytes: int = Field(4 * 2**30, ge=1024, description="Bytes that all sessions of an owner may store.")
    features: tuple[str, ...] = Field(
        (), description="Features to leave out, as -NAME, or that must be there, as +NAME; default: all installed ones."
    )

    _of_features: dict[type[FeatureSettings], FeatureSettings] = PrivateAttr(default_factory=dict)

    def of(self, kind: type[F]) -> F:
        """Get the settings of a feature, by their class: as given in code, or as the environment has them.

        Raises:
            SettingsError: A value is wrong.
        """
        found: Any = self._of_features.get(kind) or self._of_features.setdefault(kind, read_settings(kind))
        return cast("F", found)

    def give(self, *of_features: FeatureSettings) -> Self:
        """Have features use these settings, whatever the environment says."""
        self._of_features |= {type(each): each for each in of_features}
        return self

    @property
    def store_url(self) -> StoreUrl:
        """The store's URL, with its default filled in."""
        return StoreUrl(self.store or f"{SQLITE}{self.data_dir / 'sessions.db'}")

    @cached_property
    def tokens_lines(self) -> tuple[str, ...]:
        """The lines of the tokens file as they were when these settings were first asked for them.

        The server asks before it starts workers, so all of them, replacements too, take the same tokens.

        Raises:
            SettingsError: The file can't be read.
        """
        if self.tokens_file is None:
            return ()
        try:
            return tuple(self.tokens_file.read_text(encoding="utf-8-sig").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise SettingsError(f"The tokens file can't be read: {reason}. Correct TOOLPACK_TOKENS_FILE.") from None

    def share(self, total: int) -> int:
        """How much of something one owner may have: half of it, unless there is but one owner."""
        several = len(self.tokens) > 1 or self.tokens_file is not None
        return max(1, total // 2) if several else total

    @property
    def max_agent_body_bytes(self) -> int:
        """The size of a body that is sent to an agent's path."""
        return max(1024, self.max_body_bytes // 16)

    @property
    def max_reply_bytes(self) -> int:
        """The size of the answer to a request: whatever a change may answer fits, or it would be made and not told.

        A result stands in an answer up to three times, by MCP as text in JSON and as JSON; a list ends with an item
        that is as large as it is, and a batch has answers before it.
        """
        return max(4 * self.max_body_bytes, 4 * self.max_result_bytes + 2 * self.max_list_bytes)

    @cached_property
    def max_record_bytes(self) -> int:
        """The size of a call's arguments, and of its result, in the trace; the rest is cut."""
        return self.max_result_bytes // 4

    @property
    def keep_bytes(self) -> int:
        """How much the kept versions of a session may take."""
        return self.max_session_bytes // 32

    @property
    def exclusive(self) -> bool:
        """Whether only one worker at a time can use the store, which then needs no leases."""
        return self.workers == 1 and not self.store_url.shared


# Other variables with the prefix: the command's own, and those that Kubernetes sets for a service called `toolpack`.
_OTHER_VARIABLES = re.compile(r"TOKEN|BENCHMARK_.*|(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT(_\d+_(TCP|UDP).*)?")


def unknown_variables(of_features: Collection[str]) -> list[str]:
    """Describe each environment variable that looks like a setting, and is neither one nor one of a feature's."""
    known = {*Settings.variables(), *of_features}
    notices = []
    for name in sorted(os.environ):
        upper = name.upper()
        if not upper.startswith(PREFIX.rstrip("_")) or upper in known:
            continue
        if upper.startswith(PREFIX) and _OTHER_VARIABLES.fullmatch(upper.removeprefix(PREFIX)):
            continue
        rest = re.sub("^TOOLPACKS?_?", "", upper)
        meant = difflib.get_close_matches(rest, [name.removeprefix(PREFIX) for name in sorted(known)], 1, 0.7)
        if meant or upper.startswith(PREFIX):
            remedy = f"did you mean {PREFIX}{meant[0]}?" if meant else "docs/operate/operate.md lists them."
            notices.append(f"the environment variable {name} isn't a setting: {remedy}")
    return notices


def load_settings(**given: Any) -> Settings:
    """Read the settings: values that are `given` and not None, then the environment, then the defaults.

    Raises:
        SettingsError: A value is wrong; the text names the setting.
    """
    return read_settings(Settings, **{name: value for name, value in given.items() if value is not None})


def read_settings(kind: type[S], **given: Any) -> S:
    """Read the settings of the server, or of a feature; raises as `load_settings`."""
    # Kubernetes sets TOOLPACK_PORT=tcp://… for a service called `toolpack`: that isn't our setting.
    injected = [name for name, value in os.environ.items() if name.startswith(PREFIX) and value.startswith("tcp://")]
    saved = {name: os.environ.pop(name) for name in injected}
    try:
        return kind(**given)
    except ValidationError as error:
        problems = "; ".join(
            f"{kind.prefix}{str(e['loc'][0]).upper()}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors(include_input=False)
        )
        raise SettingsError(f"A setting is wrong. {problems}. Correct the variable or the flag.") from None
    finally:
        os.environ.update(saved)
