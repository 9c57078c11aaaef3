"""Hypothesis strategies for hostile values, and for bodies of requests that contain them.

About half of each request is valid, because a server would refuse a wholly invalid request at its first check. Then the
hostile half would never reach the code behind this check. This module sends nothing.
"""

import json
from dataclasses import dataclass

from hypothesis import strategies as st
from serving import AGENTS_METHODS, CLIENTS_METHODS

ODD_NAMES = [
    "", " ", "a", "ledger", "nasty", "halves", "vault", "__proto__", "__class__", "__init__", "__dict__", "constructor",
    "self", "cls", "call", "args", "kwargs", "env", "params", "model_dump", "model_validate", "model_fields", "copy",
    "json", "dict", "schema", "$call", "$ref", "$schema", "function", "amount", "value", "session_id", "rpc.discover",
    "rpc.", "../../etc/passwd", "${jndi:ldap://x}", "%s%n", "{0.__class__}", "'; DROP TABLE sessions; --", "\x00",
    "\u0000a", "a\nb", "\r\nX-Injected: 1", "\x1b[31m", "\u202e", "\ufeff", "\ufffe", "😀" * 40,
    "e\u0301", "İ", "ß", "\u0663", "a" * 129, "b" * 257, "c" * 5000,
]  # fmt: skip
POINTERS = [
    "/", "//", "/-", "/0", "/01", "/~", "~2", "/~2", "/~01", "/ledger", "/ledger/-", "/ledger/ledger/entries/-",
    "/ledger/ledger/entries/0/01", "/ledger/ledger/entries/00", "/ledger/ledger/entries/-1",
    "/ledger/ledger/entries/-/x",     "/ledger/ledger/entries/1e0", "/ledger/ledger/entries/\u0660",
    "/nasty/people/0/name/0", "/__class__",
    "/ledger/__class__/__init__", "/" + "9" * 30, "/" + "9" * 5000, "/ledger/ledger/entries/" + "9" * 5000, "#/ledger",
    "/%6cedger", "/" * 3000, "/\x00",
]  # fmt: skip
# Functions of the test toolpacks that return at once. Their other functions wait until a test releases them.
FUNCTIONS = [
    "add", "total", "get_ledger", "append_to", "add_then", "add_and_return", "echo", "add_later", "wish", "befriend",
    "rename_boss", "tag", "half_done", "inspect_state", "push_left", "push_right", "get_left", "put_right", "push_on",
    "take_gold", "get_log", "store_list",
]  # fmt: skip
ARGUMENTS = ["amount", "target", "how", "what", "value", "name", "wish", "times", "one", "other", "tags", "number",
             "shelf", "things"]  # fmt: skip
WAYS = ["raise", "exit", "interrupt", "cancel", "generator", "recurse", "surrogate", "lambda", "grow", "object", "much",
        "cycle"]  # fmt: skip

# A placeholder. `damaged_json` replaces it in most bodies with a harmless value, and in some bodies with one of the
# `POISONS`: invalid JSON, or JSON that some parsers refuse.
POISON = "@poison@"
POISONS = [
    b"NaN", b"Infinity", b"-Infinity", b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\ud83d"', b'"\xed\xa0\x80"', b'"\xff"',
    b'"\xc0\x80"', b"1e999", b"-1e400", b"9" * 400, b"9" * 5000, b"0x1", b"01", b"+1", b"'a'", b'"\x1f"', b'"\\x"',
    b"undefined", b"",
]  # fmt: skip
HARMLESS = [b"null", b'"a"', b"1e-400", b"9" * 300, b"1E+2", b"-0", b'"\\ud83d\\ude00"', b'"\\u0000"', b'"\\/"']


def mostly(right, odd, times=9):
    """Draw from the strategy `right` `times` times as often as from `odd`.

    `right | odd` would draw each alternative of both strategies equally often.
    """
    return st.sampled_from([right] * times + [odd]).flatmap(lambda chosen: chosen)


texts = (
    st.sampled_from(ODD_NAMES)
    | st.sampled_from(ODD_NAMES)
    | st.text(max_size=20)
    | st.text(st.characters(categories=["Cc", "Cf", "Lu", "Mn", "Co"]), max_size=8)
)
integers = st.sampled_from(
    [0, -1, 1, 2, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**25, -(10**299)]
) | st.integers(-5, 300)
floats = st.sampled_from([0.0, -0.0, 0.5, 1e-300, 5e-324, 1e308, 1e16]) | st.floats(
    width=32, allow_nan=False, allow_infinity=False
)
leaves = st.none() | st.booleans() | integers | floats | texts | st.just(POISON)


def _containers(inner):
    call = st.fixed_dictionaries(
        {"function": st.sampled_from(FUNCTIONS) | texts, "args": st.dictionaries(_arguments, inner, max_size=2)}
    )
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
        | st.fixed_dictionaries({"$call": call | inner})
        | st.fixed_dictionaries({"$call": call, "more": inner})
    )


_arguments = st.sampled_from(ARGUMENTS) | texts
values = st.recursive(leaves, _containers, max_leaves=12)


def _nested(depth):
    value = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def _calls(depth, function):
    call = {"function": function, "args": {}}
    for _ in range(depth):
        call = {"function": "echo", "args": {"value": {"$call": call}}}
    return {"$call": call}


deep = st.builds(_nested, st.sampled_from([7, 120, 127, 128, 129, 500, 900]))
chains = st.builds(_calls, st.sampled_from([1, 15, 16, 17, 40]), st.sampled_from([*FUNCTIONS, "no_such"]))
calls = st.fixed_dictionaries(
    {"$call": st.fixed_dictionaries({"function": st.sampled_from(FUNCTIONS), "args": st.just({})})}
)
kwargs = st.dictionaries(
    _arguments, st.sampled_from(WAYS) | values | deep | chains | calls | st.just([1, 2]), max_size=3
)
environments = st.dictionaries(
    st.sampled_from(["ledger", "vault", "nasty", "halves"]) | texts,
    st.fixed_dictionaries({}, optional={"ledger": values, "people": st.lists(values, max_size=2), "vault": values,
                                        "left": values, "numbers": values, "price": values, "at": values,
                                        "wireName": values}) | values | deep,
    max_size=3,
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """The sessions that requests attack.

    Attributes:
        session: A session that no request may close.
        victim: A session that a request may close.
        foreign: A session of another owner.
    """

    session: str
    victim: str
    foreign: str


def _plausible(target):
    """Return a strategy for plausible values of each parameter."""
    version = st.sampled_from([0, 1, 2, 3]) | st.none()
    return {
        "session_id": st.sampled_from([target.session] * 4 + [target.victim, target.foreign, "0" * 32]),
        "format": st.sampled_from(["native", "openai", "anthropic", "gemini", "mcp"]),
        "function": st.sampled_from(FUNCTIONS),
        "kwargs": kwargs | kwargs.map(json.dumps),
        "raise_on_error": st.booleans(),
        "call_id": st.sampled_from(["one", "two", "x" * 128, "\x00"]) | st.none(),
        "expected_version": version,
        "timeout_seconds": st.sampled_from([1, 0.5, 5.0, 1e-9, 1e300]),
        "toolpacks": st.lists(st.sampled_from(["ledger", "nasty", "halves", "vault"]), max_size=3) | st.none(),
        "options": st.dictionaries(st.sampled_from(["vault", "ledger"]),
                                   st.dictionaries(st.sampled_from(["gold", "owners", "secret"]) | texts, values,
                                                   max_size=3),
                                   max_size=2),
        "environment": environments,
        "ttl_seconds": st.sampled_from([1000, 1e-9, 0.01, 1e8, 4e8]),
        "labels": st.dictionaries(texts, texts, max_size=3),
        "version": version,
        "pointer": st.sampled_from(POINTERS),
        "from_version": st.sampled_from([0, 1, 2, 99]),
        "to_version": version,
        "to_session_id": st.sampled_from([target.session, target.victim, target.foreign, None]),
        "path": st.booleans(),
        "parent": st.sampled_from([target.session, target.foreign, None]),
        "order": st.sampled_from(["id", "-created"]),
        "after": st.sampled_from([-1, 0, 5, 2**53 - 1, "", "f" * 32]),
        "limit": st.sampled_from([1, 1000]),
        "count": st.sampled_from([1, 2]),
        "task": st.sampled_from(["ledger/none", "none/x", "ledger", "/", None]),
        "toolpack": st.sampled_from(["ledger", "none", None]),
        "split": st.sampled_from(["test", ""]) | st.none(),
        "tags": st.lists(texts, max_size=2),
        "role": st.sampled_from(["system", "user", "assistant"]),
        "content": texts,
        "answer": texts,
        "seed": texts,
        "clock": st.sampled_from(["2030-01-01T00:00:00Z", "2030-01-01", "never"]),
        "versions": st.sampled_from(["all", "ends"]),
        "mode": st.sampled_from(["exact", "replay"]),
    }  # fmt: skip


# Methods that end sessions. They never get the id of the session that must survive.
_ENDING = {"close_session"}


def _params(target, model, ending):
    plausible = _plausible(target)
    if ending:
        plausible["session_id"] = st.sampled_from([target.victim, target.foreign, "0" * 32])
    names = sorted(model.model_fields, key=lambda name: name != "session_id")
    members = {name: mostly(plausible.get(name, values), values, 12) for name in names}
    required = {name: members[name] for name in names if model.model_fields[name].is_required()}
    others = {name: members[name] for name in names if name not in required}
    right = st.fixed_dictionaries(required, optional=others)
    extended = st.builds(lambda valid, more: valid | more, right, st.dictionaries(texts, values, max_size=2))
    partial = st.fixed_dictionaries({}, optional=members)
    by_position = st.tuples(*members.values()).map(list)
    return st.sampled_from([right] * 8 + [by_position] * 2 + [extended, partial, values]).flatmap(lambda one: one)


ids = mostly(st.sampled_from([1, "a", 0, -1, 1.5, "", 2**60, 10**25, "\x00", "😀", None]), values)


def requests(target, *, agent=False):
    """Return a strategy for single requests. Most have a valid form."""
    models = {method.declared.name: method for method in (AGENTS_METHODS if agent else CLIENTS_METHODS)}

    def request(name):
        members = {"jsonrpc": st.just("2.0"), "method": st.just(name), "id": ids}
        members["params"] = _params(target, models[name], name in _ENDING)
        notification = {key: value for key, value in members.items() if key != "id"}
        return mostly(
            st.fixed_dictionaries(members), st.fixed_dictionaries(notification, optional={"more": values}), 19
        )

    names = [*models, *["run_function"] * 6]
    odd = st.fixed_dictionaries(
        {}, optional={"jsonrpc": st.just("2.0") | values, "method": texts | values, "params": values, "id": ids}
    )
    return mostly(st.sampled_from(names).flatmap(request), odd, 15)


def _as_json(value, *, raw, spaces):
    separators = (" ,\n", "\t: ") if spaces else (",", ":")
    return json.dumps(value, ensure_ascii=not raw, separators=separators).encode("utf-8", "surrogatepass")


@st.composite
def damaged_json(draw, of_values):
    """Draw a value, and return its JSON, which is damaged at times."""
    body = _as_json(draw(of_values), raw=draw(st.booleans()), spaces=draw(st.booleans()))
    mark = json.dumps(POISON).encode()
    if mark in body:
        body = body.replace(mark, draw(st.sampled_from(HARMLESS * 6 + POISONS)))
    for _ in range(draw(st.sampled_from([0] * 9 + [1, 2]))):
        body = draw(st.sampled_from(_DAMAGES))(draw, body)
    return body


def bodies(target, *, agent=False):
    """Return a strategy for bodies. Most are the JSON of one request or of a batch."""
    one = requests(target, agent=agent)
    return damaged_json(mostly(one, mostly(st.lists(mostly(one, values, 4), max_size=5), values, 3), 7))


def _cut(draw, body):
    return body[: draw(st.integers(0, len(body)))]


def _insert(draw, body):
    at = draw(st.integers(0, len(body)))
    odd = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x00", b"\xef\xbb\xbf", b"NaN",
           b"-Infinity",            b"1e999", b"0x1", b"01", b"//", b",", b'"', b"\\u",
           b"\\ud800", b"[", b"}", b"9" * 5000, b"\x1f"]  # fmt: skip
    return body[:at] + draw(st.sampled_from(odd)) + body[at:]


def _duplicate_member(draw, body):
    key = draw(st.sampled_from([b'"id":7,', b'"method":"run_function",', b'"params":[],', b'"jsonrpc":"1.0",']))
    at = body.find(b"{") + 1
    return body[:at] + key + body[at:]


def _overwrite(draw, body):
    at = draw(st.integers(0, max(0, len(body) - 1)))
    return body[:at] + bytes([draw(st.integers(0, 255))]) + body[at + 1 :]


_DAMAGES = [_cut, _insert, _duplicate_member, _overwrite]


def _request(method, **params):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, separators=(",", ":")).encode()


HEAVY_BYTES = 10 * 2**20


def heavy_bodies(target, size=HEAVY_BYTES):
    """Return bodies of about `size` bytes, by name. Each causes as much work as possible in one way."""
    one, many = "x" * size, size // 8
    session = target.session
    numbered = dict.fromkeys((f"{number:x}" for number in range(size // 10)), 1)
    bodies_by_name = {
        "a long argument": _request("run_function", session_id=session, function="echo", kwargs={"value": one}),
        "a long function": _request("run_function", session_id=session, function=one),
        "a long method": _request(one),
        "a long id": json.dumps({"jsonrpc": "2.0", "id": one, "method": "x"}).encode(),
        "a long session": _request("get_session", session_id=one),
        "a long pointer": _request("get_environment", session_id=session, pointer="/ledger" + "/" * size),
        "a long label": _request("create_session", labels={one: "x"}),
        "a long toolpack": _request("create_session", toolpacks=[one]),
        "a long call_id": _request("run_function", session_id=session, function="total", call_id=one),
        "escapes alone": _request(
            "run_function", session_id=session, function="echo", kwargs={"value": '"' * (size // 2)}
        ),
        "commas in a string": _request("run_function", session_id=session, function=one.replace("x", ",")),
        "an open string of escapes": b'["' + b'\\"' * (size // 2),
        "unknown parameters": _request("get_session", session_id=session, **numbered),
        "unknown arguments": _request("run_function", session_id=session, function="add", kwargs=numbered),
        "unknown options": _request("create_session", toolpacks=["vault"], options={"vault": numbered}),
        "a wrong label each": _request("create_session", labels=numbered),
        "a wrong toolpack each": _request("create_session", toolpacks=[1] * (size // 2)),
        "a wrong element each": _request(
            "run_function", session_id=session, function="store_list", kwargs={"things": [1] * (size // 2)}
        ),
        "a wrong entry each": _request(
            "create_session", environment={"ledger": {"ledger": {"entries": [""] * (size // 3)}}}
        ),
        "positions": _request("x").replace(b"{}", b"[" + b"1," * (size // 2) + b"1]"),
        "a wide batch": b"[" + b"[]," * (size // 3) + b"1]",
        "wide objects": b"[" + b"{}," * (size // 3) + b"1]",
        "brackets": b"[" * size,
        "pairs of brackets": b"[]" * (size // 2),
        "digits": b"9" * size,
        "a long fraction": b"0." + b"9" * size,
        "spaces": b" " * size,
        "backslashes": b'"' + b"\\" * size,
        "zero bytes": bytes(size),
        "quotes": b'"' * size,
    }
    return bodies_by_name | {
        "many arguments": _request(
            "run_function", session_id=session, function="echo", kwargs={"value": [[]] * (many // 8)}
        )
    }


def parse_request(body):
    """Parse a body as a server should, or return None if it isn't JSON."""
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        return None
