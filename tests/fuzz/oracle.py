"""What must be true of every answer, whatever was asked."""

import json
import sys
from pathlib import Path

import orjson

from server.rpc.codes import CODES, FAILURE_CODES, STANDARD

INTERNAL = -32603
ALLOWED = {*STANDARD, *CODES.values(), *FAILURE_CODES.values()} - {INTERNAL}
WITHOUT_ID = {-32700, -32600, -32007}
# Nothing that clients send holds one of these.
LEAKS = [
    text.encode()
    for text in (
        "Traceback (most recent", 'File "/', "site-packages", " object at 0x", str(Path(__file__).parents[2]),
        sys.prefix, sys.base_prefix + "/lib", f"{Path.home()}/", ".py:",
    )
]  # fmt: skip


class BrokenError(AssertionError):
    """A promise was broken."""


def require(condition, what, *details):
    if not condition:
        shown = "; ".join((repr(detail)[:2000]) for detail in details)
        raise BrokenError(f"{what}: {shown}")


def _no_constant(name):
    raise BrokenError(f"{name} in a reply is no JSON")


def _once(pairs):
    found = dict(pairs)
    require(len(found) == len(pairs), "a name stands twice in an object", pairs)
    return found


def strict(text):
    """Read a reply, which must be JSON as RFC 8259 has it, without names that stand twice."""
    try:
        orjson.loads(text)  # refuses lone surrogates and bad UTF-8
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
    except BrokenError:
        raise
    except ValueError as error:
        raise BrokenError(f"a reply is no JSON: {error}: {text[:500]!r}") from None


def check_text(text):
    for leak in LEAKS:
        require(leak not in text, "a reply or log tells of the server's inside", leak, text[-2000:])


def check_reply(reply, body):
    """Check the reply to a body, and get its answers; none where there was nothing to say."""
    sent, is_json = _sent(body)
    if reply is None:
        asked = sent if isinstance(sent, list) else [sent]
        require(is_json and asked, "what is no JSON needs an answer", body[:500])
        for request in asked:
            require(isinstance(request, dict) and "id" not in request, "a request got no answer", request)
        return []
    check_text(reply)
    told = strict(reply)
    if isinstance(told, list):
        require(isinstance(sent, list) and told, "a list answers what was no batch", body[:500], reply[:500])
        require(len(told) <= len(sent), "a batch has more answers than members", body[:500])
        wanted = [request.get("id") for request in sent if isinstance(request, dict)]
        for answer in told:
            _check_answer(answer)
            if answer["id"] is not None:
                require(any(_same(answer["id"], one) for one in wanted), "an answer has a strange id", answer)
        return told
    _check_answer(told)
    wanted = sent.get("id") if isinstance(sent, dict) else None
    if not _same(told["id"], wanted):
        require(told["id"] is None, "the answer has another id", told["id"], wanted)
        require(told.get("error", {}).get("code") in WITHOUT_ID, "the id is missing", told, wanted)
    return [told]


def _sent(body):
    try:
        return json.loads(body.decode(), parse_constant=_refuse), True
    except (ValueError, RecursionError):
        return None, False


def _refuse(name):
    raise ValueError(name)


def _same(one, other):
    return type(one) is type(other) and one == other


def _check_answer(answer):
    require(isinstance(answer, dict) and answer.get("jsonrpc") == "2.0", "an answer is no response object", answer)
    if "error" not in answer:
        require(set(answer) == {"jsonrpc", "result", "id"}, "an answer has other members", answer)
        return
    require(set(answer) == {"jsonrpc", "error", "id"}, "an answer has other members", answer)
    error = answer["error"]
    require(set(error) == {"code", "message", "data"}, "an error has other members", error)
    require(error["code"] in ALLOWED, "an error has a code that it must not have", error)
    require(isinstance(error["message"], str) and error["message"], "an error has no message", error)
