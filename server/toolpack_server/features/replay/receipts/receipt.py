"""The format of a receipt: one JSON object, in canonical form, and a signature of all the rest of it.

    {"code": …, "format": …, "key": …, "sessions": [{…}, …], "signature": …, "times": {…}}

What depends on the machine or the moment is in `times` and nowhere else, and what is drawn anew by each server, such as
ids, is left out. So two receipts of the same run are the same bytes, but for `times`, `key` and `signature`.

A receipt is a stranger's. It is text, so nothing in it unpacks; how much there is of it is known before it is
parsed, and no other bytes than the canonical ones are taken, so there are no two readings of one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from toolpack_server.features.replay.receipts.keys import PublicKey, SigningKey, verified
from toolpack_server.features.replay.results import Code
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.rpc.parsing import has_more_values, is_deeper

FORMAT: Literal["toolpack-receipt-1"] = "toolpack-receipt-1"
MOST_BYTES = 64 * 2**20
MOST_VALUES = 2_000_000  # each takes about a hundred bytes once it is parsed
MOST_DEPTH = 200

Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Timestamp = Annotated[str, Field(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z\z", max_length=40)]
Times = tuple[str, float]
"""When something that was recorded began, and how many milliseconds it took."""

_JsonObject = dict[str, Any]


class Refused(click.ClickException):
    """A receipt can't be verified: it isn't one, it was changed, or it can't be run here."""

    exit_code = 2


class ReceiptPart(BaseModel):
    """What a session of a family had done when the next one was forked from it.

    Attributes:
        version: At which it was forked.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    details: _JsonObject  # its seed and clock, for example
    records: list[_JsonObject]
    version: Count


class ReceiptEntry(BaseModel):
    """A session: what it began with, its records without times and ids, and the verdict on it.

    Attributes:
        forked_from: Of a fork, the sessions that led to it, whose toolpacks and options are its own.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    toolpacks: Annotated[list[str], Field(min_length=1)]
    options: dict[str, _JsonObject]
    environment: dict[str, Any]
    task: str
    kept: _JsonObject  # what features keep with it, besides the task
    details: _JsonObject  # its seed and clock, for example
    labels: dict[str, str]
    version: Count
    records: list[_JsonObject]
    verdict: _JsonObject
    forked_from: list[ReceiptPart] = []  # from the first of its family on

    @property
    def parts(self) -> list[ReceiptPart]:
        """What led to it, session by session, its own records last."""
        return [*self.forked_from, ReceiptPart(details=self.details, records=self.records, version=self.version)]

    @property
    def all_records(self) -> list[_JsonObject]:
        return [record for part in self.parts for record in part.records]

    def shown(self) -> _JsonObject:
        """Get it as JSON; where it is no fork, nothing says so."""
        return self.model_dump(exclude=None if self.forked_from else {"forked_from"})

    @property
    def place(self) -> tuple[str, bytes, bytes]:
        """What sessions are sorted by; the last of it is the session's canonical form."""
        return self.task, canonical(self.labels), canonical(self.shown())


class AllTimes(BaseModel):
    """When a receipt was made, and the times of each record of each session."""

    model_config = ConfigDict(strict=True, extra="forbid")

    made: Timestamp
    sessions: list[
        list[Annotated[tuple[Timestamp, Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(strict=False)]]
    ]


class Receipt(BaseModel):
    """A receipt, but for its signature; its sessions are in their order."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["toolpack-receipt-1"]
    code: _JsonObject
    sessions: Annotated[list[ReceiptEntry], Field(min_length=1)]
    times: AllTimes
    key: str


def canonical(value: Any) -> bytes:
    """Get the only text of a JSON value that counts."""
    return dumps(value, sort_keys=True)


def write(code: Code, sessions: list[tuple[ReceiptEntry, list[Times]]], made: str, key: SigningKey) -> bytes:
    """Get the text of a receipt, signed."""
    in_order = sorted(sessions, key=lambda each: (each[0].place, each[1]))
    receipt = {
        "format": FORMAT,
        "code": code,
        "sessions": [entry.shown() for entry, _ in in_order],
        "times": {"made": made, "sessions": [times for _, times in in_order]},
        "key": key.public,
    }
    return canonical(receipt | {"signature": key.sign(canonical(receipt))}) + b"\n"


def read(path: Path, key: PublicKey | None) -> Receipt:
    """Read a receipt, and check all that can be checked without running anything.

    Args:
        key: Whose it must be; None if anybody's will do.

    Raises:
        Refused: It isn't a receipt, is too large, was changed, or was signed by somebody else.
    """
    value = _parsed(path)
    signature = value.pop("signature", None)
    try:
        receipt = Receipt.model_validate(value)
        TypeAdapter(Code).validate_python(receipt.code, strict=True)
    except ValidationError as error:
        place = ".".join(str(part)[:40] for part in error.errors(include_url=False, include_input=False)[0]["loc"])
        raise Refused(f"{path} hasn't the form of a receipt, at {place or 'its start'}.") from None
    _check_signature(path, value, signature, key)
    _check_sessions(path, receipt)
    return receipt


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Refused(f"{path} can't be read: {error.strerror}.") from None
    if len(text) > MOST_BYTES or has_more_values(text, MOST_VALUES):
        raise Refused(f"{path} has more than {MOST_BYTES} bytes or {MOST_VALUES} values, which no receipt has.")
    try:
        value = loads(text)
    except ValueError:
        raise Refused(f"{path} is no receipt: it isn't JSON.") from None
    if not isinstance(value, dict) or is_deeper(text, value, MOST_DEPTH):
        raise Refused(f"{path} is no receipt: it is no JSON object, or is nested more than {MOST_DEPTH} deep.")
    if value.get("format") != FORMAT:
        raise Refused(f"{path} isn't of the format {FORMAT!r}, which this version reads.")
    if canonical(value) + b"\n" != text:
        raise Refused(f"{path} was changed: it isn't written as receipts are, byte for byte.")
    return value


def _check_signature(path: Path, signed: Mapping[str, Any], signature: Any, key: PublicKey | None) -> None:
    said = signed["key"]
    if not isinstance(signature, str):
        raise Refused(f"{path} isn't signed.")
    if key is not None and said != key:
        raise Refused(f"{path} was signed with another key than {key}, which --key wants.")
    if not verified(said, signature, canonical(signed)):
        raise Refused(f"{path} was changed, or never signed with its key: the signature is wrong.")


def _check_sessions(path: Path, receipt: Receipt) -> None:
    """Check that what was signed fits together; whoever signs may sign anything."""
    if [len(each.all_records) for each in receipt.sessions] != [len(times) for times in receipt.times.sessions]:
        raise Refused(f"{path} hasn't a time for each record of its sessions.")
    before: tuple[Any, Any] | None = None
    for number, (entry, times) in enumerate(zip(receipt.sessions, receipt.times.sessions, strict=True)):
        place = entry.place, times
        if before is not None and place <= before:
            what = "is there twice" if place == before else "isn't in its order"
            raise Refused(f"Session {number} of {path} {what}.")
        before = place
        if entry.verdict.get("task") != entry.task or entry.task.partition("/")[0] not in entry.toolpacks:
            raise Refused(f"Session {number} of {path} has the verdict on another task than its own.")
        for part in entry.forked_from:
            if part.version and part.version not in [record.get("version") for record in part.records]:
                raise Refused(
                    f"Session {number} of {path} was forked at version {part.version} of a session whose records "
                    "don't lead there."
                )
        if missing := [name for name in entry.toolpacks if name not in receipt.code["toolpacks"]]:
            raise Refused(f"{path} has no digest of the toolpack {missing[0][:80]!r}, which session {number} has.")
