"""Format of a receipt: one JSON object in canonical form, with a signature of its other fields.

    {"code": …, "format": …, "key": …, "sessions": [{…}, …], "signature": …, "times": {…}}

All values that depend on the machine or the time are in `times`. Random values of a server, such as ids, are omitted.
So two receipts of the same run differ only in `times`, `key` and `signature`.

A stranger might have written the receipt. So it isn't compressed, and its size and number of values are checked before
it is parsed. Only the canonical form is accepted, because two parsers could read another form differently.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from toolpack_server.features.replay.receipts.keys import PublicKey, SigningKey, is_valid_signature
from toolpack_server.features.replay.results import Code
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.rpc.parsing import has_more_values, is_deeper

FORMAT: Literal["toolpack-receipt-1"] = "toolpack-receipt-1"
MAX_BYTES = 64 * 2**20
MAX_VALUES = 2_000_000  # each needs about 100 bytes of memory after parsing
MAX_DEPTH = 200

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Timestamp = Annotated[str, Field(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z\z", max_length=40)]
Times = tuple[str, float]
"""The start time of a record, and its duration in milliseconds."""

_JsonObject = dict[str, Any]


class ReceiptRefusedError(click.ClickException):
    """Raised if a receipt can't be verified, because the file isn't a receipt, was changed, or can't be run here."""

    exit_code = 2


class ReceiptPart(BaseModel):
    """The history of one session, up to its end or to the point where the next part's session was forked from it.

    Attributes:
        details: Features' data of the session, such as its seed and clock.
        version: The version of the fork point.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    details: _JsonObject
    records: list[_JsonObject]
    version: Count


class ReceiptEntry(BaseModel):
    """A session in a receipt: how it was created, its records without times and ids, and the verdict.

    Attributes:
        feature_options: The features' data in the session's recipe, without the task.
        details: Features' data of the session, such as its seed and clock.
        forked_from: The histories of a fork's ancestors, the oldest first. They have the fork's toolpacks and options.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    toolpacks: Annotated[list[str], Field(min_length=1)]
    options: dict[str, _JsonObject]
    environment: dict[str, Any]
    task: str
    feature_options: _JsonObject
    details: _JsonObject
    labels: dict[str, str]
    version: Count
    records: list[_JsonObject]
    verdict: _JsonObject
    forked_from: list[ReceiptPart] = []

    @property
    def parts(self) -> list[ReceiptPart]:
        """The histories of the ancestors and the session's own, in order."""
        return [*self.forked_from, ReceiptPart(details=self.details, records=self.records, version=self.version)]

    @property
    def all_records(self) -> list[_JsonObject]:
        """The records of all parts, in order."""
        return [record for part in self.parts for record in part.records]

    def shown(self) -> _JsonObject:
        """Return the entry as JSON, without `forked_from` if the session isn't a fork."""
        return self.model_dump(exclude=None if self.forked_from else {"forked_from"})

    @property
    def sort_key(self) -> tuple[str, bytes, bytes]:
        """The key for sorting sessions. Its last item is the session's canonical form."""
        return self.task, canonical(self.labels), canonical(self.shown())


class AllTimes(BaseModel):
    """When a receipt was written, and the times of each record of each session."""

    model_config = ConfigDict(strict=True, extra="forbid")

    made: Timestamp
    sessions: list[
        list[Annotated[tuple[Timestamp, Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(strict=False)]]
    ]


class Receipt(BaseModel):
    """A receipt without its signature. The sessions are sorted."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["toolpack-receipt-1"]
    code: _JsonObject
    sessions: Annotated[list[ReceiptEntry], Field(min_length=1)]
    times: AllTimes
    key: str


def canonical(value: Any) -> bytes:
    """Return the canonical form of a JSON value."""
    return dumps(value, sort_keys=True)


def write(code: Code, sessions: list[tuple[ReceiptEntry, list[Times]]], made: str, key: SigningKey) -> bytes:
    """Return a signed receipt.

    Args:
        made: The present time.
    """
    ordered = sorted(sessions, key=lambda each: (each[0].sort_key, each[1]))
    receipt = {
        "format": FORMAT,
        "code": code,
        "sessions": [entry.shown() for entry, _ in ordered],
        "times": {"made": made, "sessions": [times for _, times in ordered]},
        "key": key.public,
    }
    return canonical(receipt | {"signature": key.sign(canonical(receipt))}) + b"\n"


def read(path: Path, key: PublicKey | None) -> Receipt:
    """Read a receipt, and do all checks that don't run functions.

    Args:
        key: The required public key. None: accept any key.

    Raises:
        ReceiptRefusedError: The file isn't a receipt, is too large, was changed, or has another key.
    """
    value = _parsed(path)
    signature = value.pop("signature", None)
    try:
        receipt = Receipt.model_validate(value)
        TypeAdapter(Code).validate_python(receipt.code, strict=True)
    except ValidationError as error:
        location = ".".join(str(part)[:40] for part in error.errors(include_url=False, include_input=False)[0]["loc"])
        raise ReceiptRefusedError(f"{path} isn't a valid receipt, at {location or 'its start'}.") from None
    _check_signature(path, value, signature, key)
    _check_sessions(path, receipt)
    return receipt


def _parsed(path: Path) -> dict[str, Any]:
    """Parse a file. Raise `ReceiptRefusedError` if it isn't a JSON object in a receipt's format and canonical form."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ReceiptRefusedError(f"{path} can't be read: {error.strerror}.") from None
    if len(text) > MAX_BYTES or has_more_values(text, MAX_VALUES):
        raise ReceiptRefusedError(f"{path} isn't a receipt: it has more than {MAX_BYTES} bytes or {MAX_VALUES} values.")
    try:
        value = loads(text)
    except ValueError:
        raise ReceiptRefusedError(f"{path} isn't a receipt: it isn't JSON.") from None
    if not isinstance(value, dict) or is_deeper(text, value, MAX_DEPTH):
        raise ReceiptRefusedError(
            f"{path} isn't a receipt: it isn't a JSON object, or is nested more than {MAX_DEPTH} deep."
        )
    if value.get("format") != FORMAT:
        raise ReceiptRefusedError(f"{path} doesn't have the format {FORMAT!r} of this version.")
    if canonical(value) + b"\n" != text:
        raise ReceiptRefusedError(f"{path} was changed: it isn't in canonical form.")
    return value


def _check_signature(path: Path, signed: Mapping[str, Any], signature: Any, key: PublicKey | None) -> None:
    """Check that the receipt was signed with the key that it contains, and that this is `key` unless `key` is None."""
    own_key = signed["key"]
    if not isinstance(signature, str):
        raise ReceiptRefusedError(f"{path} isn't signed.")
    if key is not None and own_key != key:
        raise ReceiptRefusedError(f"{path} was signed with the key {own_key[:80]}, not with that of --key, {key}.")
    if not is_valid_signature(own_key, signature, canonical(signed)):
        raise ReceiptRefusedError(f"{path} has a wrong signature: it was changed, or its key didn't sign it.")


def _check_sessions(path: Path, receipt: Receipt) -> None:
    """Check that the sessions are consistent. A valid signature doesn't prove that."""
    if [len(each.all_records) for each in receipt.sessions] != [len(times) for times in receipt.times.sessions]:
        raise ReceiptRefusedError(f"{path} doesn't have a time for each record of its sessions.")
    before: tuple[Any, Any] | None = None
    for number, (entry, times) in enumerate(zip(receipt.sessions, receipt.times.sessions, strict=True)):
        sort_key = entry.sort_key, times
        if before is not None and sort_key <= before:
            what = "occurs twice" if sort_key == before else "is out of order"
            raise ReceiptRefusedError(f"Session {number} of {path} {what}.")
        before = sort_key
        if entry.verdict.get("task") != entry.task or entry.task.partition("/")[0] not in entry.toolpacks:
            raise ReceiptRefusedError(f"Session {number} of {path} has a verdict on another task, or of no toolpack.")
        for part in entry.forked_from:
            if part.version and part.version not in [record.get("version") for record in part.records]:
                raise ReceiptRefusedError(
                    f"Session {number} of {path} was forked at version {part.version}, but the records before the fork "
                    "don't have this version."
                )
        if missing := [name for name in entry.toolpacks if name not in receipt.code["toolpacks"]]:
            raise ReceiptRefusedError(f"{path} has no digest of the toolpack {missing[0][:80]!r} of session {number}.")
