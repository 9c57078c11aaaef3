"""Settings of the server, in one class.

A setting is an environment variable `TOOLPACK_<NAME>`. The table in docs/operate/settings.md lists each setting with
its default and the first sentence of its description; a test compares the table with this class.
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
BOM = "\ufeff"  # byte order mark, which some editors write at the start of a file with variables
MIN_TOKEN_LENGTH = 8
SEQUENCES = (tuple, list, set, frozenset)
THREAD = "thread"
"""The default isolation, which every server has."""

_FIXED = {*FixedLimits.model_fields}

Seconds = Annotated[float, Field(le=315_360_000)]
"""Seconds, at most ten years. Infinity and other times that the system's clock can't represent are refused."""

S = TypeVar("S", bound="_FromEnvironment")
F = TypeVar("F", bound="FeatureSettings")


def split_list(value: str, separator: str) -> list[str]:
    return [part.strip() for part in value.split(separator) if part.strip()]


def _split_folders(value: Any) -> Any:
    """Split a string at its colons. Return other values unchanged."""
    return split_list(value.removeprefix(BOM), ":") if isinstance(value, str) else value


def _split_pairs(value: Any) -> Any:
    """Parse a string of name:token pairs into a dictionary, or raise `ValueError`. Return other values unchanged."""
    if not isinstance(value, str):
        return value
    pairs: dict[str, str] = {}
    parts = [part.strip() for part in value.removeprefix(BOM).split(",")]
    if value and not any(parts):  # a mistake such as "," must not open the server to everyone
        raise ValueError("it has no token: give name:token pairs, or unset it")
    for number, part in enumerate(filter(None, parts), 1):
        name, colon, token = (text.strip() for text in part.partition(":"))
        if not (name and colon and token):
            raise ValueError(f"entry {number} is not of the form name:token")
        if len(token) < MIN_TOKEN_LENGTH or not re.fullmatch(r"[!-~]+", token):
            raise ValueError(
                f"the token of {name!r} must have {MIN_TOKEN_LENGTH} or more visible ASCII characters: create one with "
                f"`openssl rand -hex 16`"
            )
        if name in pairs:
            raise ValueError(f"the name {name!r} is given twice")
        if token in pairs.values():
            raise ValueError(f"the token of {name!r} belongs to another owner, too")
        pairs[name] = token
    return pairs


class _FromEnvironment(BaseModel):
    """Base class of settings that are read from environment variables with a prefix."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_default=True)
    prefix: ClassVar[str] = PREFIX

    def __init__(self, **values: Any) -> None:
        """Create settings. A value in `values` overrides the environment variable, which overrides the default."""
        names = self.variables()
        environment = {names[name.upper()]: value for name, value in os.environ.items() if name.upper() in names}
        super().__init__(**{**environment, **values})

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Strip a string. If the field is a list without a validator of its own, split the string at its commas."""
        field = cls.model_fields[str(info.field_name)]
        if not isinstance(value, str) or any(isinstance(each, BeforeValidator) for each in field.metadata):
            return value
        text = value.removeprefix(BOM).strip()
        is_list = any(get_origin(each) in SEQUENCES for each in (field.annotation, *get_args(field.annotation)))
        return split_list(text, ",") if is_list else text

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Return the settings' field names by environment variable, in the order of the fields."""
        return {f"{cls.prefix}{name.upper()}": name for name in cls.model_fields if name not in _FIXED}

    @classmethod
    def described(cls) -> dict[str, tuple[str, str]]:
        """Return each setting's default ("" if empty), and the first sentence of its description, by variable."""
        descriptions = {}
        for variable, name in cls.variables().items():
            field = cls.model_fields[name]
            default = field.get_default(call_default_factory=True)
            text = str(default).lower() if isinstance(default, bool) else str(default)
            sentence = re.match(r".*?\.(?=\s|$)", str(field.description))
            descriptions[variable] = "" if default in (None, "", (), {}) else text, sentence[0] if sentence else ""
        return descriptions


class FeatureSettings(_FromEnvironment):
    """Base class of a feature's settings: `class TasksSettings(FeatureSettings, feature="tasks")`.

    Each field needs a default and a description. Its environment variable is `TOOLPACK_<FEATURE>_<FIELD>`. Spaces
    around a value are removed, and commas separate the items of a list.
    """

    def __init_subclass__(cls, *, feature: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.prefix = f"{PREFIX}{feature.upper()}_"


class Settings(_FromEnvironment, FixedLimits):
    """The settings of one server. Each field is an environment variable, and some are also flags.

    The fields of `FixedLimits` have no environment variable; only code can set them.
    """

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 chooses a free one.")
    workers: int = Field(1, ge=1, le=64, description="Number of worker processes.")
    store: str = Field(
        "",
        description="URL of the store: memory:, sqlite:///path, redis://host or postgresql://host/db; default: SQLite "
        "in the data directory.",
    )
    data_dir: Path = Field(Path(".toolpack-server"), description="Folder for the SQLite store and the secret key.")
    pack_dir: Annotated[tuple[Path, ...], BeforeValidator(_split_folders)] = Field(
        (), description="Folders with toolpacks, separated by colons."
    )
    packs: tuple[str, ...] = Field(
        (),
        description="Names of the toolpacks to load; default: all toolpacks in the folders, or without folders all "
        "installed toolpacks.",
    )
    tokens: Annotated[dict[str, SecretStr], BeforeValidator(_split_pairs)] = Field(
        default_factory=dict, description="Bearer tokens as name:token pairs; each name is an owner of sessions."
    )
    no_auth: bool = Field(False, description="Serve without tokens on an address that isn't loopback.")
    host_names: tuple[str, ...] = Field(
        (), description="Host names in requests that a server without tokens accepts, besides its IP addresses."
    )
    secret_key: SecretStr | None = Field(
        None, min_length=16, description="Key of the HMAC on stored snapshots; default: a file in the data directory."
    )
    timeout_seconds: Seconds = Field(30, gt=0, description="Deadline of a call whose function sets none, in seconds.")
    max_threads: int = Field(
        256,
        ge=1,
        description="Maximum number of slow functions that run at once per worker; if the server has several owners, "
        "each can use at most half.",
    )
    isolation: str = Field(
        THREAD,
        description="Where toolpacks' code runs: thread (in the worker), or process (in separate processes, the "
        "executors).",
    )
    shutdown_delay_seconds: Seconds = Field(
        0,
        ge=0,
        description="Seconds for which a stopping server still accepts requests, while /readyz already answers 503.",
    )
    drain_seconds: Seconds = Field(6, ge=0, description="Seconds that a stopping server waits for running calls.")
    max_waiting: int = Field(
        10_000,
        ge=1,
        description="Maximum number of waiting calls per worker; if the server has several owners, each can use at "
        "most half.",
    )
    ttl_seconds: Seconds = Field(86_400, gt=0, description="Lifetime of a session after its last call, in seconds.")
    keep_versions: int = Field(
        100, ge=0, description="Number of old versions to retain for fork, reset and diff, besides version 0."
    )
    cache_bytes: int = Field(40 * 2**20, ge=0, description="Estimated memory per worker for cached sessions, in bytes.")
    max_body_bytes: int = Field(
        16 * 2**20,
        ge=1024,
        description="Maximum size of a request's body; at an agent's address the maximum is a sixteenth of it, and for "
        "a response it is four times as much.",
    )
    log_calls: Literal["auto", "full", "json", "text", "off"] = Field(
        "auto",
        description="Format of the line that each call logs: json, text, off, auto (text on a terminal, else json), or "
        "full (auto, with arguments and results).",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged; debug adds the tracebacks of functions."
    )
    verify_read_only: bool = Field(
        False,
        description="Check after every call of a read-only function, not only after some, that the environment hasn't "
        "changed.",
    )
    tokens_file: Path | None = Field(
        None, description="File with one hashed token per line, as printed by `toolpack-server token`."
    )
    console: bool = Field(True, description="Serve the console, a web page, at /console/.")
    max_connections: int = Field(5000, ge=1, description="Maximum number of open connections per worker.")
    max_sessions: int = Field(100_000, ge=1, description="Maximum number of sessions per owner.")
    max_result_bytes: int = Field(
        2**20, ge=1024, description="Maximum size of a call's result as JSON; a record stores at most a quarter of it."
    )
    max_environment_bytes: int = Field(
        32 * 2**20, ge=1024, description="Maximum size of the snapshot of a toolpack's environment."
    )
    lazy_min_bytes: int = Field(
        0,
        ge=0,
        description="Minimum size of an environment that is stored in pieces, which are loaded when a call uses them; "
        "0: never.",
    )
    max_volume_bytes: int = Field(
        64 * 2**20, ge=2**16, description="Maximum size of a database or of a tree of files in an environment."
    )
    scratch_dir: Path | None = Field(
        None,
        description="Folder for databases and files while calls use them; default: /dev/shm, or the system's temporary "
        "folder if /dev/shm has less than 512 MB free.",
    )
    max_session_bytes: int = Field(
        256 * 2**20,
        ge=1024,
        description="Maximum number of stored bytes per session; its old versions can use a thirty-second of it.",
    )
    max_owner_bytes: int = Field(
        4 * 2**30, ge=1024, description="Maximum number of stored bytes of all sessions of an owner."
    )
    features: tuple[str, ...] = Field(
        (), description="Features to leave out (-NAME) or to require (+NAME); default: all installed features."
    )

    _of_features: dict[type[FeatureSettings], FeatureSettings] = PrivateAttr(default_factory=dict)

    def of(self, kind: type[F]) -> F:
        """Return the settings of a feature, from `give` or else from the environment variables.

        Args:
            kind: The class of the feature's settings.

        Raises:
            SettingsError: A value is wrong.
        """
        if kind not in self._of_features:
            self._of_features[kind] = read_settings(kind)
        return cast("F", self._of_features[kind])

    def give(self, *of_features: FeatureSettings) -> Self:
        """Set the settings of features, whose environment variables are then ignored. Return self."""
        self._of_features |= {type(each): each for each in of_features}
        return self

    @property
    def store_url(self) -> StoreUrl:
        """The URL of the store. The default is a SQLite file in the data directory."""
        return StoreUrl(self.store or f"{SQLITE}{self.data_dir / 'sessions.db'}")

    @cached_property
    def tokens_lines(self) -> tuple[str, ...]:
        """The lines of the tokens file, read once.

        The server reads the file before it starts workers. So all workers, even later replacements, use the same
        tokens.

        Raises:
            SettingsError: The file can't be read.
        """
        if self.tokens_file is None:
            return ()
        try:
            return tuple(self.tokens_file.read_text(encoding="utf-8-sig").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it isn't UTF-8 text"
            raise SettingsError(f"The tokens file can't be read: {reason}. Correct TOOLPACK_TOKENS_FILE.") from None

    def share(self, total: int) -> int:
        """Return the part of a resource that one owner is allowed to use, which is half if there are several owners."""
        several = len(self.tokens) > 1 or self.tokens_file is not None
        return max(1, total // 2) if several else total

    @property
    def max_agent_body_bytes(self) -> int:
        """Maximum size of a request's body at an agent's address."""
        return max(1024, self.max_body_bytes // 16)

    @property
    def max_reply_bytes(self) -> int:
        """Maximum size of a response. The response to every change must fit, because the change can't be undone.

        A result can need three times its size, because MCP sends it as JSON and again as a string that contains JSON.
        The last item of a list can exceed the list's limit, and a batch has several responses.
        """
        return max(4 * self.max_body_bytes, 4 * self.max_result_bytes + 2 * self.max_list_bytes)

    @cached_property
    def max_record_bytes(self) -> int:
        """Maximum size of a call's arguments, and of its result, in a record. A digest replaces a larger value."""
        return self.max_result_bytes // 4

    @property
    def keep_bytes(self) -> int:
        """Maximum total size of a session's old versions."""
        return self.max_session_bytes // 32

    @property
    def exclusive(self) -> bool:
        """True if only one worker can use the store, so that it needs no leases."""
        return self.workers == 1 and not self.store_url.shared


# Variables with the prefix that aren't settings: the command's, and Kubernetes' variables for a service `toolpack`.
_OTHER_VARIABLES = re.compile(r"TOKEN|BENCHMARK_.*|(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT(_\d+_(TCP|UDP).*)?")


def unknown_variables(of_features: Collection[str]) -> list[str]:
    """Return a notice for each environment variable that looks like a setting but isn't one.

    Args:
        of_features: The environment variables of features' settings.
    """
    settings = {*Settings.variables(), *of_features}
    notices = []
    for name in sorted(os.environ):
        upper = name.upper()
        if not upper.startswith(PREFIX.rstrip("_")) or upper in settings:
            continue
        if upper.startswith(PREFIX) and _OTHER_VARIABLES.fullmatch(upper.removeprefix(PREFIX)):
            continue
        rest = re.sub("^TOOLPACKS?_?", "", upper)
        similar = difflib.get_close_matches(rest, [name.removeprefix(PREFIX) for name in sorted(settings)], 1, 0.7)
        if similar or upper.startswith(PREFIX):
            remedy = f"did you mean {PREFIX}{similar[0]}?" if similar else "docs/operate/settings.md lists them."
            notices.append(f"the environment variable {name} isn't a setting: {remedy}")
    return notices


def load_settings(**values: Any) -> Settings:
    """Return the settings. A value in `values` that isn't None overrides the environment variable.

    Raises:
        SettingsError: A value is wrong; the message names the setting.
    """
    return read_settings(Settings, **{name: value for name, value in values.items() if value is not None})


def read_settings(kind: type[S], **values: Any) -> S:
    """Return an instance of a settings class, with `values` and the environment variables; see `load_settings`."""
    # Kubernetes sets TOOLPACK_PORT=tcp://… for a service named `toolpack`. That is no setting, so it is hidden here.
    injected = [name for name, value in os.environ.items() if name.startswith(PREFIX) and value.startswith("tcp://")]
    saved = {name: os.environ.pop(name) for name in injected}
    try:
        return kind(**values)
    except ValidationError as error:
        problems = "; ".join(
            f"{kind.prefix}{str(e['loc'][0]).upper()}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors(include_input=False)
        )
        raise SettingsError(f"A setting is wrong. {problems}. Correct the variable or the flag.") from None
    finally:
        os.environ.update(saved)
