"""The checks at the end of a fault test: each session's data is compared with the clients' records and with a replay.

A replay runs the trace in this process, on plain objects and in a plain SQLite database, with only the server's
functions runtime. It implements resets, rules and participants again, independently. So its result doesn't depend on
snapshots, caches, stores or features.
"""

import copy
import functools
import importlib
import itertools
import json
import sqlite3
from collections import Counter
from typing import Any, NamedTuple

from toolpack_server import FunctionsRuntime
from toolpack_server.execution.nested import read_nested
from toolpack_server.jsonio.view import to_json
from toolpack_server.packs.loading import load_catalog
from tools.faults.clients import (
    AGENT,
    CLIENT,
    CRASHED,
    GUESTS_CALLS,
    NEVER_IN_TIME,
    READING,
    RULES,
    SUSPECTED,
    TASK,
    TOOLPACKS,
    UNRECORDED,
    RefusedError,
    allowed,
    packed,
)
from tools.faults.world import PACKS

PAGE = 1000
RULE_OF = {rule["functions"]: rule["name"] for rule in RULES}
TEXT_OF = {rule["name"]: rule.get("error") or rule.get("lost") or rule.get("append") for rule in RULES}
NOT_RUN = {"down", "flaky", "stale"}
NOT_INHERITED = {"verdict"}


class HistoryNode(NamedTuple):
    """A record in a session's history, with totals of the records up to it.

    Attributes:
        before: The node before it.
        of: The session of the record, and its index; None at the beginning.
        is_inherited: True if forks inherit the record.
        calls: The number of calls of each address, as (address, None), and of the agent per function, as (agent,
            function).
        answers: The last answer to the agent per key; only of functions with a rule that repeats old answers.
        said: The last message, and the linked list of earlier ones.
        changes: The number of calls that have changed the environment.
        depth: The number of records up to this one that forks inherit.
    """

    before: "HistoryNode | None" = None
    of: tuple | None = None
    is_inherited: bool = True
    calls: dict = {}  # noqa: RUF012 - never changed
    answers: dict = {}  # noqa: RUF012
    said: tuple | None = None
    changes: int = 0
    depth: int = 0

    def path(self, session_id=None):
        """Return the nodes up to this one, in order. Nodes that forks don't inherit are included only for their own
        session.
        """
        nodes, node = [], self
        while node.of is not None:
            if node.is_inherited or node.of[0] == session_id:
                nodes.append(node)
            node = node.before
        return nodes[::-1]

    def conversation(self, name):
        """Return the messages from and to a participant, in order."""
        messages, said = [], self.said
        while said is not None:
            message, said = said
            if message.get("to") is None or name in {message["by"], message["to"]}:
                messages.append({"by": message["by"], "to": message.get("to"), "content": message["content"]})
        return messages[::-1]


class PlainDatabase(sqlite3.Connection):
    """A database in memory. Its transactions end with the calls, not with `commit`."""

    def commit(self):
        pass

    def end(self, *, keep):
        super().commit() if keep else super().rollback()


class WorldSnapshot(NamedTuple):
    """The environments at a version."""

    ledger: Any
    tally: Any
    database: bytes


class Replay:
    """A session's trace, run in this process.

    Attributes:
        ends: The last node of each version.
        depths: For each version, the number of records that forks inherit at least.
        moments: The environments at the versions that are needed.
        full: True if a participant has ever used all of its calls.
    """

    def __init__(self, session, start, place, needed, draws, *, isolated):
        self.session = session
        self.ends = []
        self.depths = []
        self.moments = {}
        self.full = _is_full(place)
        self.place = place
        self.places = {}
        self._draws = draws  # whether a rule matched a call, by the rule, its seed and the number of the call
        self._isolated = isolated
        self._late = {_recorded_id(call, session) for call in session.calls if call.late}
        self._needed = needed
        self._ledger, self._tally = start.ledger, start.tally
        self._database = sqlite3.connect(":memory:", factory=PlainDatabase, check_same_thread=False)
        self._database.deserialize(start.database)
        self._begin_version()

    def close(self):
        self._database.close()

    def _begin_version(self):
        """Begin a new version. Store a snapshot of the environments if the version is needed."""
        self.ends.append(self.place)
        self.depths.append(self.place.depth)
        if len(self.ends) - 1 in self._needed:
            moment = copy.deepcopy(self._ledger), copy.deepcopy(self._tally), self._database.serialize()
            self.moments[len(self.ends) - 1] = WorldSnapshot(*moment)

    def as_json(self):
        """Return the environments in the form of `get_environment`."""
        ledger, tally = (json.loads(to_json(each)) for each in (self._ledger, self._tally))
        return {
            "ledger": {"ledger": ledger},
            "tally": {"tally": tally},
            "shelf": {"db": _shelf().tables(self._database)},
        }

    def verdict(self, version):
        """Return the verdict that the evaluator gives at a version."""
        ledger = self._ledger
        metrics = {
            "before": initial_digest(),
            "now": _shelf().digest(self._database),
            "length": ledger.length,
            "digest": ledger.digest,
            "changes": self.place.changes,
        }
        verdict = {"task": TASK, "version": version, "reward": ledger.length / 1000, "passed": True, "checks": []}
        return verdict | {"metrics": metrics}

    def run(self, record, problems):
        """Run one record of the trace, and report differences between the record and the result."""
        where = f"record {record['index']}"
        if record["kind"] == "reset":
            self._reset(record["to_version"])
        elif record["kind"] == "call":
            self._call(record, where, problems)
        else:
            self._append(record)
        version = len(self.ends) - 1
        if record["version"] != version:
            problems.append(f"{where}: version {record['version']}, but a replay has {version}")
        if record["kind"] == "verdict" and _verdict_fields(record) != self.verdict(version):
            problems.append(f"{where}: it is {_verdict_fields(record)}, but a replay gives {self.verdict(version)}")
        self.places[record["index"]] = self.place

    def _reset(self, version):
        moment = self.moments[version]
        self._ledger, self._tally = copy.deepcopy(moment.ledger), copy.deepcopy(moment.tally)
        self._database.deserialize(moment.database)
        self.place = self.ends[version]
        self._begin_version()

    def _append(self, record, heard=None, *, changes=False):
        """Append a record to the history."""
        place, by, function = self.place, record.get("by"), record.get("function")
        calls, answers, said = place.calls, place.answers, place.said
        if record["kind"] == "call" and by != CLIENT:
            names = [function, *(each["function"] for each in record.get("nested", ()))]
            calls = Counter(calls)
            calls[by, None] += len(names)
            for name in names if by == AGENT else ():
                calls[by, name] += 1
            if by == AGENT and function == "find" and heard["error"] is None:
                answers = answers | {record["kwargs"]["key"]: heard["result"]}
        if record["kind"] == "message" and by is not None:
            said = record, said
        of, is_inherited = (self.session.id, record["index"]), record["kind"] not in NOT_INHERITED
        depth = place.depth + is_inherited
        self.place = HistoryNode(place, of, is_inherited, calls, answers, said, place.changes + changes, depth)
        self.full = self.full or _is_full(self.place)
        if changes:
            self._begin_version()
        else:
            self.ends[-1] = self.place

    def _call(self, record, where, problems):
        rule = self._rule(record) if self.session.seed is not None and record["by"] == AGENT else None
        function, error, changes, perturbed, why = record["function"], record["error"] or "", False, None, None
        if self._is_too_much(record):
            if not error.startswith("ValidationError: With its nested calls this counts as 2 calls; 1 of your"):
                why = f"{record['by']} has one call left"
        elif function not in allowed(record["by"]):
            refused = f"ToolNotFoundError: The requested function `{function}` is not available."
            # A busy machine may check the function's name only after the deadline.
            if not error.startswith(("TimeoutError", refused) if self._is_late(record) else refused):
                why = f"{record['by']} may not call {function}"
        elif rule in NOT_RUN:
            perturbed = {"rules": [rule], "run": False, "agent": {}}
            expected = (self.place.answers[record["kwargs"]["key"]], None) if rule == "stale" else ("", TEXT_OF[rule])
            if (record["result"], record["error"]) != expected:
                why = f"the rule {rule!r} answers {expected}"
        elif error.startswith(CRASHED):
            why = None if self._isolated else "there are no executors"
        elif error.startswith("TimeoutError") or self._is_late(record):
            changes = record["version"] == len(self.ends)
            if error.startswith("TimeoutError") != self._is_late(record):
                why = "a TimeoutError is missing, or there shouldn't be one"
        else:
            perturbed, changes, why = self._check_run(record, rule)
        why = why or self._check_perturbed(record, perturbed)
        if why:
            problems.append(f"{where}: {why}: {record}")
        self._append(record, received_of(record), changes=changes)

    def _check_run(self, record, rule):
        """Run a call again. Return the effects of its rule, whether it has changed the environments, and the problem,
        if any.
        """
        result, failure = self._run(record)
        why = None
        if (result, failure) != (record["result"], record["error"]):
            why = f"a replay gives {result!r}, {failure!r}"
        if failure is not None or rule is None:
            return None, failure is None and record["function"] not in READING, why
        effects = {"error": TEXT_OF[rule], "result": ""} if rule == "lost" else {"result": result + TEXT_OF[rule]}
        return {"rules": [rule], "run": True, "agent": effects}, record["function"] not in READING, why

    def _check_perturbed(self, record, perturbed):
        """Return the problem with a record's remaining fields, or None."""
        if record["by"] == "guest" and _is_full(self.place):
            return "the guest has no call left"
        return None if record.get("perturbed") == perturbed else f"its rules give {perturbed}"

    def _is_too_much(self, record):
        """Return whether a call has a nested call that exceeds its caller's limit."""
        left = GUESTS_CALLS - self.place.calls.get(("guest", None), 0)
        return record["by"] == "guest" and left == 1 and "$call" in json.dumps(record["kwargs"])

    def _is_late(self, record):
        """Return whether a call can't meet its deadline."""
        return record["function"] in NEVER_IN_TIME or record.get("call_id") in self._late

    def _run(self, record):
        no_delay = {"seconds": 0} if "seconds" in record["kwargs"] else {}
        kwargs = read_nested({**record["kwargs"], **no_delay})[0]
        ledger, tally = copy.deepcopy(self._ledger), copy.deepcopy(self._tally)
        environment = _World(ledger, tally, self._database)
        result, error = _runtime().run_function(environment, record["function"], kwargs)
        self._database.end(keep=error is None)
        if error is None:
            self._ledger, self._tally = ledger, tally
        return json.loads(to_json(result)), error

    def _rule(self, record):
        """Return the rule that this call of the agent matches, or None."""
        function, name = record["function"], RULE_OF.get(record["function"])
        number = self.place.calls.get((AGENT, function), 0) + 1
        if name == "down":
            return name if number % 7 == 3 else None
        if name == "lost":
            return name if number % 5 == 2 else None
        if name == "stale":
            return name if number % 3 == 2 and record["kwargs"]["key"] in self.place.answers else None
        if name in {"told", "flaky"}:
            has_met = name in (record.get("perturbed") or {"rules": []})["rules"]
            if name == "told" and record["error"] is not None:
                return None  # the rule has no visible effect then
            # Random draws depend on these three values only, so they are the same in all sessions.
            drawn = self._draws.setdefault((name, self.session.seed, number), has_met)
            return name if drawn else None
        return None


class _World:
    """The object from which the functions' dependencies read their attributes."""

    def __init__(self, ledger, tally, db):
        self.ledger, self.tally, self.db = ledger, tally, db


def _is_full(place):
    return place.calls.get(("guest", None), 0) >= GUESTS_CALLS


def _verdict_fields(verdict):
    return {name: verdict[name] for name in ("task", "version", "reward", "passed", "checks", "metrics")}


def received_of(record):
    """Return a record with the result and error that the caller received, which rules may have altered."""
    return {**record, **(record.get("perturbed") or {"agent": {}})["agent"]}


@functools.cache
def _runtime():
    functions = load_catalog((PACKS,)).functions(TOOLPACKS)
    return FunctionsRuntime([function.function for function in functions.values()])


def _shelf():
    _runtime()
    return importlib.import_module("toolpacks.fault_shelf")


@functools.cache
def initial():
    """Return the environments at a session's start."""
    database = sqlite3.connect(":memory:")
    database.executescript(_shelf().SCHEMA)
    pack = importlib.import_module("toolpacks.fault_ledger")
    return WorldSnapshot(pack.Ledger(), pack.Tally(), database.serialize())


@functools.cache
def initial_digest():
    database = sqlite3.connect(":memory:")
    database.deserialize(initial().database)
    return _shelf().digest(database)


def check_all(send, sessions, unanswered_forks, *, isolated):
    """Check all sessions, parents first, and return the problems of each, by session id.

    Args:
        unanswered_forks: Number of requests for two forks that were never answered.
        isolated: True if functions run in executors, which may be killed.
    """
    problems, replays, draws = {}, {}, {}
    needed = {each: set() for each in sessions}  # the versions that forks need
    for session in sessions.values():
        if session.parent is not None:
            parent, version = session.parent
            needed[parent].add(version)
    for session in sessions.values():  # parents come before their forks
        problems_here = problems[session.id] = []
        trace, path = (_read(send, session, path=path) for path in (False, True))
        start, place = initial(), HistoryNode()
        if session.parent is not None:
            start, place = _fork_point(session, replays[session.parent[0]], path, problems_here)
        back_to = {record["to_version"] for record in trace if record["kind"] == "reset"}
        needed_here = needed[session.id] | back_to
        replay = replays[session.id] = Replay(session, start, place, needed_here, draws, isolated=isolated)
        try:
            _check(send, session, replay, trace, path, problems_here)
        except RefusedError as refused:
            problems_here.append(f"the session can't be read: {refused}")
        for version in [*replay.moments]:
            if version not in needed[session.id]:
                del replay.moments[version]
        replay.close()
    _check_list(send, sessions, unanswered_forks, problems)
    return problems


def _read(send, session, *, path):
    records, last = [], -1
    while page := send("get_trace", {"session_id": session.id, "after": last, "limit": PAGE, "path": path}):
        records += page
        last = page[-1]["path_index" if path else "index"]
    return records


def _fork_point(session, parent, path, problems):
    """Return the environments and the node at which a fork begins. The parent knows only the fork's version."""
    version = session.parent[1]
    if version not in parent.moments:
        problems.append(f"the session was forked from version {version}, which its parent never had")
        return initial(), HistoryNode()
    inherited = [(record["session_id"], record["index"]) for record in path if record["session_id"] != session.id]
    places = parent.ends[version].path()
    is_whole = [place.of for place in places[: len(inherited)]] == inherited
    if not is_whole or len(inherited) < parent.depths[version]:
        problems.append(f"the session inherited the records {inherited[-3:]}, but its parent has {places[-3:]}")
        return parent.moments[version], parent.ends[version]
    return parent.moments[version], places[len(inherited) - 1] if inherited else HistoryNode()


def _check(send, session, replay, trace, path, problems):
    if [record["index"] for record in trace] != list(range(len(trace))):
        problems.append(f"the indices have gaps: {[record['index'] for record in trace]}")
    seen = {}
    for version, view in session.views:
        seen.setdefault(version, []).append((Replay.as_json, view))
    for version, verdict in session.verdicts:
        seen.setdefault(version, []).append(
            (functools.partial(Replay.verdict, version=version), packed(_verdict_fields(verdict)))
        )
    _compare_views(replay, seen, problems)
    for record in trace:
        count = len(replay.ends)
        replay.run(record, problems)
        if len(replay.ends) > count:
            _compare_views(replay, seen, problems)
    problems += [f"a client read version {version}, which the session never had" for version in seen]
    version = send("get_session", {"session_id": session.id})["version"]
    if version != len(replay.ends) - 1:
        problems.append(f"the session is at version {version}, but a replay of its trace at {len(replay.ends) - 1}")
    environment = send("get_environment", {"session_id": session.id})
    if environment != replay.as_json():
        problems.append(f"the environment is {environment}, but a replay of its trace gives {replay.as_json()}")
    history = [(record["session_id"], record["index"]) for record in path]
    expected = [place.of for place in replay.place.path(session.id)]
    if history != expected:
        problems.append(f"its path has {len(history)} records, but a replay gives {len(expected)}")
    _check_calls(session, replay, trace, problems)
    _check_resets(session, trace, problems)
    _check_heard(send, session, replay, problems)


def _compare_views(replay, seen, problems):
    """Compare the replay's current version with the views that clients have read of it."""
    version = len(replay.ends) - 1
    for look, view in seen.pop(version, ()):
        expected = look(replay)
        if packed(expected) != view:
            problems.append(f"a client read version {version} with other content than {expected}")


def _check_calls(session, replay, trace, problems):
    recorded = {}
    ran = Counter()
    for record in trace:
        if record["kind"] in {"call", "message"}:
            key = _key(record.get("call_id"), record.get("function"), record.get("kwargs"))
            recorded[key] = record
            ran[key] += 1
    problems += [f"{key} is in the trace {times} times" for key, times in ran.items() if times > 1]
    last = {}
    for call in session.calls:
        record = recorded.pop(_key(_recorded_id(call, session), call.function, call.kwargs), None)
        problems += _check_call(call, record, replay)
        if record is not None and call.envelope is not None:
            if record["index"] < last.get(call.client, -1):
                problems.append(f"{call} was sent after the answer to its client's last one, but recorded before it")
            last[call.client] = record["index"]
    problems += [f"no client sent {record}" for record in recorded.values()]


def _check_call(call, record, replay):
    """Yield the problems with the record of a call, and with its answer."""
    if SUSPECTED in str(_error(call)):  # faults have ended its worker each time
        if record is not None:
            yield f"{call} must not run again, but is in the trace: {record}"
    elif str(_error(call)).startswith(UNRECORDED):
        if record is not None or call.by != "guest" or not replay.full:
            yield f"{call} was refused, but {call.by} has calls left or the trace has it: {record}"
    elif record is None:
        if call.envelope is not None:
            yield f"{call} was acknowledged but is not in the trace"
    elif call.refused:
        yield f"{call} was refused as changing nothing, but is in the trace: {record}"
    elif (record.get("by") or CLIENT) != call.by:
        yield f"{call} is recorded as the call of another address: {record}"
    elif call.envelope is not None and call.envelope != _expected_answer(call, record):
        yield f"{call} was answered differently from its record: {record}"


def _recorded_id(call, session):
    """Return the `call_id` of a call as it is recorded."""
    prefix = f"{call.by}/" if session.participants and call.by != CLIENT and call.call_id else ""
    return call.call_id and prefix + call.call_id


def _error(call):
    return call.envelope["error"] if isinstance(call.envelope, dict) else None


def _expected_answer(call, record):
    """Return the answer that corresponds to a record."""
    if record["kind"] == "call":
        heard = received_of(record)
        return {"result": heard["result"], "error": heard["error"]}
    said = call.kwargs.get("text", call.kwargs.get("content"))
    return record["content"] == said and record.get("to") == call.kwargs.get("to")


def _key(call_id, function, kwargs):
    return call_id or f"{function} {json.dumps(kwargs, sort_keys=True)}"


def _check_resets(session, trace, problems):
    unexplained = [record for record in trace if record["kind"] == "reset"]
    for to_version, version in session.resets:
        if version is not None:
            # The answer has the version at its writing; calls may have added versions since the reset.
            matching = [r for r in unexplained if r["to_version"] == to_version and r["version"] <= version]
            if not matching:
                problems.append(f"the reset to version {to_version} was acknowledged but is not in the trace")
                continue
            unexplained.remove(matching[-1])
    unknown = Counter(to_version for to_version, version in session.resets if version is None)
    for to_version, times in Counter(record["to_version"] for record in unexplained).items():
        if times > unknown[to_version]:
            problems.append(f"it was reset to version {to_version} {times - unknown[to_version]} times too often")


def _check_heard(send, session, replay, problems):
    """Check the messages to participants: in the order of the history, each message once, and no others."""
    if not session.participants:
        return
    after_saying = {}  # for each text, the first node after its message
    for place in itertools.chain(replay.ends[0].path(), replay.places.values()):
        if place.said is not None:
            after_saying.setdefault(place.said[0]["content"], place)
    for by, after, messages in session.heard:
        place = after_saying.get(messages[-1]["content"])
        expected = place and place.conversation(by)[after + 1 :]
        received = [{name: message.get(name) for name in ("by", "to", "content")} for message in messages]
        indices = [message["index"] for message in messages]
        if received != expected or indices != [*range(after + 1, after + 1 + len(messages))]:
            problems.append(f"{by} received {messages[-3:]} after {after}, but a replay gives {(expected or [])[-3:]}")
    for by, (path, _) in session.paths.items():
        received = send("listen", {}, path)["messages"]
        expected = replay.place.conversation(by)
        if [{name: message.get(name) for name in ("by", "to", "content")} for message in received] != expected:
            problems.append(f"{by} receives {received[-3:]}, but a replay gives {expected[-3:]}")


def _check_list(send, sessions, unanswered_forks, problems):
    """Check that the server lists all sessions that clients have created, and no others."""
    listed = []
    for labels in {json.dumps(session.labels) for session in sessions.values()}:
        after = {}
        while page := send("list_sessions", {"labels": json.loads(labels), "limit": PAGE} | after):
            listed += [session["session_id"] for session in page]
            after = {"after": listed[-1]}
    more = {*listed} - {*sessions}
    if len(listed) != len({*listed}) or not {*sessions} <= {*listed} or len(more) > 2 * unanswered_forks:
        problems["list"] = [f"{len(listed)} sessions are listed, of which no client created {len(more)}"]
