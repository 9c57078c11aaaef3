"""The checks that every answer must pass, for any request. All fuzz tests use them."""

import json
import sys
from pathlib import Path

import orjson

from toolpack_server.rpc.codes import CODES, FAILURE_CODES, STANDARD

INTERNAL = -32603
ALLOWED = {*STANDARD, *CODES.values(), *FAILURE_CODES.values()} - {INTERNAL}
WITHOUT_ID = {-32700, -32600, -32007}  # codes of errors that may lack the request's id
# Texts that reveal the server's internals. No request of the tests has them, so an answer can't repeat them.
LEAKS = [
    text.encode()
    for text in (
        "Traceback (most recent", 'File "/', "site-packages", " object at 0x", str(Path(__file__).parents[2]),
        sys.prefix, sys.base_prefix + "/lib", f"{Path.home()}/", ".py:",
    )
]  # fmt: skip


class BrokenError(AssertionError):
    """A guarantee was violated."""


def require(condition, what, *details):
    """Raise a `BrokenError` with the details if a condition is false."""
    if not condition:
        texts = "; ".join((repr(detail)[:2000]) for detail in details)
        raise BrokenError(f"{what}: {texts}")


def _no_constant(name):
    raise BrokenError(f"{name} in a reply is not JSON")


def _without_duplicates(pairs):
    members = dict(pairs)
    require(len(members) == len(pairs), "an object has a duplicate name", pairs)
    return members


def parse_strict(text):
    """Return a reply's value. Raise an error if the reply isn't JSON (RFC 8259) or has duplicate names."""
    try:
        orjson.loads(text)  # refuses lone surrogates and bad UTF-8
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_without_duplicates)
    except BrokenError:
        raise
    except ValueError as error:
        raise BrokenError(f"a reply is not JSON: {error}: {text[:500]!r}") from None


def check_text(text):
    """Check that a reply or the log doesn't reveal the server's internals."""
    for leak in LEAKS:
        require(leak not in text, "a reply or the log reveals the server's internals", leak, text[-2000:])


def check_reply(reply, body):
    """Check the reply to a body, and return the answers in it. A body with only notifications has no reply."""
    sent, is_json = _sent(body)
    if reply is None:
        requests = sent if isinstance(sent, list) else [sent]
        require(is_json and requests, "a body that is not JSON got no answer", body[:500])
        for request in requests:
            require(isinstance(request, dict) and "id" not in request, "a request got no answer", request)
        return []
    check_text(reply)
    answer = parse_strict(reply)
    if isinstance(answer, list):
        require(isinstance(sent, list) and answer, "the answer to a single request is a list", body[:500], reply[:500])
        require(len(answer) <= len(sent), "a batch has more answers than members", body[:500])
        ids = [request.get("id") for request in sent if isinstance(request, dict)]
        for member in answer:
            _check_answer(member)
            if member["id"] is not None:
                require(any(_is_same_id(member["id"], one) for one in ids), "an answer has an unknown id", member)
        return answer
    _check_answer(answer)
    request_id = sent.get("id") if isinstance(sent, dict) else None
    if not _is_same_id(answer["id"], request_id):
        require(answer["id"] is None, "the answer has another id", answer["id"], request_id)
        require(answer.get("error", {}).get("code") in WITHOUT_ID, "the id is missing", answer, request_id)
    return [answer]


def _sent(body):
    """Return the value of a body, and whether the body is JSON."""
    try:
        return json.loads(body.decode(), parse_constant=_refuse), True
    except (ValueError, RecursionError):
        return None, False


def _refuse(name):
    raise ValueError(name)


def _is_same_id(one, other):
    """Return whether two ids are equal. In Python, 1, 1.0 and True are equal, so the types must be equal, too."""
    return type(one) is type(other) and one == other


def _check_answer(answer):
    require(isinstance(answer, dict) and answer.get("jsonrpc") == "2.0", "an answer is not a response object", answer)
    if "error" not in answer:
        require(set(answer) == {"jsonrpc", "result", "id"}, "an answer has other members", answer)
        return
    require(set(answer) == {"jsonrpc", "error", "id"}, "an answer has other members", answer)
    error = answer["error"]
    require(set(error) == {"code", "message", "data"}, "an error has other members", error)
    require(error["code"] in ALLOWED, "an error has an unexpected code", error)
    require(isinstance(error["message"], str) and error["message"], "an error has no message", error)
