"""The checks at the end of a fault test: each session's data is compared with the clients' records and with a replay.

A replay runs the session's trace in this process, on plain objects and in a plain SQLite database. It uses only the
server's functions runtime, and has code of its own for resets, rules and participants. So its result doesn't depend on
the snapshots, caches, stores and features of the server that was tested.
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
    ALWAYS_LATE,
    CLIENT,
    CRASHED,
    MAX_GUEST_CALLS,
    READING,
    RULES,
    SUSPECTED,
    TASK,
    TOOLPACKS,
    UNRECORDED,
    RefusedError,
    compress,
    functions_of,
)
from tools.faults.world import PACKS

PAGE = 1000
RULE_NAMES = {rule["functions"]: rule["name"] for rule in RULES}
RULE_TEXTS = {rule["name"]: rule.get("error") or rule.get("lost") or rule.get("append") for rule in RULES}
NOT_RUN = {"down", "flaky", "stale"}  # rules that answer a call without running it
NOT_INHERITED = {"verdict"}  # kinds of records that forks don't inherit


class HistoryNode(NamedTuple):
    """A record in a session's history, with totals of all records up to this one.

    Attributes:
        previous: The node of the previous record.
        record_id: The session of the record, and its index; None at the beginning.
        is_inherited: True if forks inherit the record.
        calls: The number of calls of each address, by (address, None), and of the agent's calls of each function, by
            (agent, function).
        answers: The last answer of `find` to the agent, by key. A rule repeats old answers of this function.
        messages: The last message, and the linked list of earlier messages.
        changes: The number of calls that have changed the environment.
        inherited_count: The number of records up to this one that forks inherit.
    """

    previous: "HistoryNode | None" = None
    record_id: tuple | None = None
    is_inherited: bool = True
    calls: dict = {}  # noqa: RUF012 - never changed
    answers: dict = {}  # noqa: RUF012
    messages: tuple | None = None
    changes: int = 0
    inherited_count: int = 0

    def path(self, session_id=None):
        """Return the nodes up to this one, in order.

        Args:
            session_id: The session that reads the path. Nodes that forks don't inherit are left out for other sessions.
        """
        nodes, node = [], self
        while node.record_id is not None:
            if node.is_inherited or node.record_id[0] == session_id:
                nodes.append(node)
            node = node.previous
        return nodes[::-1]

    def conversation(self, name):
        """Return the messages from and to a participant, in order."""
        messages, rest = [], self.messages
        while rest is not None:
            message, rest = rest
            if message.get("to") is None or name in {message["by"], message["to"]}:
                messages.append({"by": message["by"], "to": message.get("to"), "content": message["content"]})
        return messages[::-1]


class PlainDatabase(sqlite3.Connection):
    """A database in memory whose transactions end with the calls. `commit` has no effect, as in a session."""

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
    """A replay of a session's trace in this process.

    Attributes:
        last_nodes: The last node of each version.
        inherited_counts: For each version, the minimum number of records that its forks inherit.
        snapshots: The environments at the needed versions.
        was_full: True if the guest has ever used all of its calls.
        node: The node of the last record.
        nodes: The node of each record, by the record's index.
    """

    def __init__(self, session, start, node, needed_versions, draws, *, isolated):
        self.session = session
        self.last_nodes = []
        self.inherited_counts = []
        self.snapshots = {}
        self.was_full = _is_full(node)
        self.node = node
        self.nodes = {}
        self._draws = draws  # for each rule with a rate, seed and number of a call: whether the rule matched the call
        self._isolated = isolated
        self._late = {_recorded_id(call, session) for call in session.calls if call.late}
        self._needed_versions = needed_versions
        self._ledger, self._tally = start.ledger, start.tally
        self._database = sqlite3.connect(":memory:", factory=PlainDatabase, check_same_thread=False)
        self._database.deserialize(start.database)
        self._begin_version()

    def close(self):
        self._database.close()

    def _begin_version(self):
        """Begin a new version. Store a snapshot of the environments if the version is needed."""
        self.last_nodes.append(self.node)
        self.inherited_counts.append(self.node.inherited_count)
        if len(self.last_nodes) - 1 in self._needed_versions:
            snapshot = copy.deepcopy(self._ledger), copy.deepcopy(self._tally), self._database.serialize()
            self.snapshots[len(self.last_nodes) - 1] = WorldSnapshot(*snapshot)

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
            "changes": self.node.changes,
        }
        verdict = {"task": TASK, "version": version, "reward": ledger.length / 1000, "passed": True, "checks": []}
        return verdict | {"metrics": metrics}

    def run(self, record, problems):
        """Run one record of the trace, and append its differences from the result to the problems."""
        where = f"record {record['index']}"
        if record["kind"] == "reset":
            self._reset(record["to_version"])
        elif record["kind"] == "call":
            self._call(record, where, problems)
        else:
            self._append(record)
        version = len(self.last_nodes) - 1
        if record["version"] != version:
            problems.append(f"{where}: version {record['version']}, but a replay has {version}")
        if record["kind"] == "verdict" and _verdict_fields(record) != self.verdict(version):
            problems.append(f"{where}: it is {_verdict_fields(record)}, but a replay gives {self.verdict(version)}")
        self.nodes[record["index"]] = self.node

    def _reset(self, version):
        snapshot = self.snapshots[version]
        self._ledger, self._tally = copy.deepcopy(snapshot.ledger), copy.deepcopy(snapshot.tally)
        self._database.deserialize(snapshot.database)
        self.node = self.last_nodes[version]
        self._begin_version()

    def _append(self, record, received=None, *, changes=False):
        """Append a record to the history.

        Args:
            record: The record.
            received: A call's record, with the result and error that the agent received.
            changes: Whether the record changed the environments, and so began a version.
        """
        node, by, function = self.node, record.get("by"), record.get("function")
        calls, answers, messages = node.calls, node.answers, node.messages
        if record["kind"] == "call" and by != CLIENT:
            names = [function, *(each["function"] for each in record.get("nested", ()))]
            calls = Counter(calls)
            calls[by, None] += len(names)
            for name in names if by == AGENT else ():
                calls[by, name] += 1
            if by == AGENT and function == "find" and received["error"] is None:
                answers = answers | {record["kwargs"]["key"]: received["result"]}
        if record["kind"] == "message" and by is not None:
            messages = record, messages
        record_id, is_inherited = (self.session.id, record["index"]), record["kind"] not in NOT_INHERITED
        inherited_count = node.inherited_count + is_inherited
        changes_so_far = node.changes + changes
        self.node = HistoryNode(
            node, record_id, is_inherited, calls, answers, messages, changes_so_far, inherited_count
        )
        self.was_full = self.was_full or _is_full(self.node)
        if changes:
            self._begin_version()
        else:
            self.last_nodes[-1] = self.node

    def _call(self, record, where, problems):
        """Run a call's record, and check its result, its error and the effects of its rule."""
        rule = self._rule(record) if self.session.seed is not None and record["by"] == AGENT else None
        function, error, changes, perturbed, problem = record["function"], record["error"] or "", False, None, None
        if self._exceeds_limit(record):
            if not error.startswith("ValidationError: With its nested calls this counts as 2 calls; 1 of your"):
                problem = f"{record['by']} has one call left"
        elif function not in functions_of(record["by"]):
            refused = f"ToolNotFoundError: The requested function `{function}` is not available."
            # A busy machine may check the function's name only after the deadline.
            if not error.startswith(("TimeoutError", refused) if self._is_late(record) else refused):
                problem = f"{record['by']} may not call {function}"
        elif rule in NOT_RUN:
            perturbed = {"rules": [rule], "run": False, "agent": {}}
            expected = (self.node.answers[record["kwargs"]["key"]], None) if rule == "stale" else ("", RULE_TEXTS[rule])
            if (record["result"], record["error"]) != expected:
                problem = f"the rule {rule!r} answers {expected}"
        elif error.startswith(CRASHED):
            problem = None if self._isolated else "there are no executors"
        elif error.startswith("TimeoutError") or self._is_late(record):
            changes = record["version"] == len(self.last_nodes)
            if error.startswith("TimeoutError") != self._is_late(record):
                problem = "a TimeoutError is missing, or there shouldn't be one"
        else:
            perturbed, changes, problem = self._check_run(record, rule)
        problem = problem or self._check_perturbed(record, perturbed)
        if problem:
            problems.append(f"{where}: {problem}: {record}")
        self._append(record, received_of(record), changes=changes)

    def _check_run(self, record, rule):
        """Run a call again. Return its rule's effects, whether it changed the environments, and a problem or None."""
        result, failure = self._run(record)
        problem = None
        if (result, failure) != (record["result"], record["error"]):
            problem = f"a replay gives {result!r}, {failure!r}"
        if failure is not None or rule is None:
            return None, failure is None and record["function"] not in READING, problem
        effects = {"error": RULE_TEXTS[rule], "result": ""} if rule == "lost" else {"result": result + RULE_TEXTS[rule]}
        return {"rules": [rule], "run": True, "agent": effects}, record["function"] not in READING, problem

    def _check_perturbed(self, record, perturbed):
        """Return the problem with a record's `perturbed` field or with the guest's limit of calls, or None."""
        if record["by"] == "guest" and _is_full(self.node):
            return "the guest has no call left"
        return None if record.get("perturbed") == perturbed else f"its rules give {perturbed}"

    def _exceeds_limit(self, record):
        """Return whether a call of the guest has a nested call that exceeds the guest's limit."""
        left = MAX_GUEST_CALLS - self.node.calls.get(("guest", None), 0)
        return record["by"] == "guest" and left == 1 and "$call" in json.dumps(record["kwargs"])

    def _is_late(self, record):
        """Return whether a call can't meet its deadline."""
        return record["function"] in ALWAYS_LATE or record.get("call_id") in self._late

    def _run(self, record):
        no_delay = {"seconds": 0} if "seconds" in record["kwargs"] else {}
        kwargs = read_nested({**record["kwargs"], **no_delay})[0]
        ledger, tally = copy.deepcopy(self._ledger), copy.deepcopy(self._tally)
        environment = _Environment(ledger, tally, self._database)
        result, error = _runtime().run_function(environment, record["function"], kwargs)
        self._database.end(keep=error is None)
        if error is None:
            self._ledger, self._tally = ledger, tally
        return json.loads(to_json(result)), error

    def _rule(self, record):
        """Return the rule that this call of the agent matches, or None."""
        function, name = record["function"], RULE_NAMES.get(record["function"])
        number = self.node.calls.get((AGENT, function), 0) + 1
        if name == "down":
            return name if number % 7 == 3 else None
        if name == "lost":
            return name if number % 5 == 2 else None
        if name == "stale":
            return name if number % 3 == 2 and record["kwargs"]["key"] in self.node.answers else None
        if name in {"told", "flaky"}:
            was_matched = name in (record.get("perturbed") or {"rules": []})["rules"]
            if name == "told" and record["error"] is not None:
                return None  # the rule has no visible effect then
            # A random draw depends only on these three values, so it must be the same in all sessions.
            matches = self._draws.setdefault((name, self.session.seed, number), was_matched)
            return name if matches else None
        return None


class _Environment:
    """The object that has the attributes for the functions' dependencies."""

    def __init__(self, ledger, tally, db):
        self.ledger, self.tally, self.db = ledger, tally, db


def _is_full(node):
    return node.calls.get(("guest", None), 0) >= MAX_GUEST_CALLS


def _verdict_fields(verdict):
    return {name: verdict[name] for name in ("task", "version", "reward", "passed", "checks", "metrics")}


def received_of(record):
    """Return a record with the result and error that the caller received. A rule may have altered them."""
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
    """Return the environments at the start of each session."""
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
    """Check all sessions, and return the problems of each session by its id.

    Args:
        send: Sends a request to the servers.
        sessions: The sessions by id, parents before their forks.
        unanswered_forks: Number of requests for two forks each that were never answered. Their forks may exist.
        isolated: True if functions run in executors, which may be killed.
    """
    problems, replays, draws = {}, {}, {}
    needed_versions = {each: set() for each in sessions}  # the versions that forks need
    for session in sessions.values():
        if session.parent is not None:
            parent, version = session.parent
            needed_versions[parent].add(version)
    for session in sessions.values():  # parents come before their forks
        problems_here = problems[session.id] = []
        trace, path = (_read(send, session, path=path) for path in (False, True))
        start, node = initial(), HistoryNode()
        if session.parent is not None:
            start, node = _fork_point(session, replays[session.parent[0]], path, problems_here)
        reset_versions = {record["to_version"] for record in trace if record["kind"] == "reset"}
        needed_here = needed_versions[session.id] | reset_versions
        replay = replays[session.id] = Replay(session, start, node, needed_here, draws, isolated=isolated)
        try:
            _check(send, session, replay, trace, path, problems_here)
        except RefusedError as refused:
            problems_here.append(f"the session can't be read: {refused}")
        for version in [*replay.snapshots]:
            if version not in needed_versions[session.id]:
                del replay.snapshots[version]
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
    """Return the environments and the node at which a fork begins.

    The fork request names only a version, so the path of the fork decides after which of its records the fork begins.
    """
    version = session.parent[1]
    if version not in parent.snapshots:
        problems.append(f"the session was forked from version {version}, which its parent never had")
        return initial(), HistoryNode()
    inherited = [(record["session_id"], record["index"]) for record in path if record["session_id"] != session.id]
    nodes = parent.last_nodes[version].path()
    is_whole = [node.record_id for node in nodes[: len(inherited)]] == inherited
    if not is_whole or len(inherited) < parent.inherited_counts[version]:
        problems.append(f"the session inherited the records {inherited[-3:]}, but its parent has {nodes[-3:]}")
        return parent.snapshots[version], parent.last_nodes[version]
    return parent.snapshots[version], nodes[len(inherited) - 1] if inherited else HistoryNode()


def _check(send, session, replay, trace, path, problems):
    if [record["index"] for record in trace] != list(range(len(trace))):
        problems.append(f"the indices have gaps: {[record['index'] for record in trace]}")
    views_by_version = {}
    for version, view in session.views:
        views_by_version.setdefault(version, []).append((Replay.as_json, view))
    for version, verdict in session.verdicts:
        views_by_version.setdefault(version, []).append(
            (functools.partial(Replay.verdict, version=version), compress(_verdict_fields(verdict)))
        )
    _compare_views(replay, views_by_version, problems)
    for record in trace:
        count = len(replay.last_nodes)
        replay.run(record, problems)
        if len(replay.last_nodes) > count:
            _compare_views(replay, views_by_version, problems)
    problems += [f"a client read version {version}, which the session never had" for version in views_by_version]
    version = send("get_session", {"session_id": session.id})["version"]
    if version != len(replay.last_nodes) - 1:
        last_version = len(replay.last_nodes) - 1
        problems.append(f"the session is at version {version}, but a replay of its trace at {last_version}")
    environment = send("get_environment", {"session_id": session.id})
    if environment != replay.as_json():
        problems.append(f"the environment is {environment}, but a replay of its trace gives {replay.as_json()}")
    history = [(record["session_id"], record["index"]) for record in path]
    expected = [node.record_id for node in replay.node.path(session.id)]
    if history != expected:
        problems.append(f"its path has {len(history)} records, but a replay gives {len(expected)}")
    _check_calls(session, replay, trace, problems)
    _check_resets(session, trace, problems)
    _check_messages(send, session, replay, problems)


def _compare_views(replay, views_by_version, problems):
    """Compare the replay's current version with the environments and verdicts that clients have read at it."""
    version = len(replay.last_nodes) - 1
    for read, view in views_by_version.pop(version, ()):
        expected = read(replay)
        if compress(expected) != view:
            problems.append(f"a client read version {version} with other content than {expected}")


def _check_calls(session, replay, trace, problems):
    records = {}
    record_counts = Counter()
    for record in trace:
        if record["kind"] in {"call", "message"}:
            key = _key(record.get("call_id"), record.get("function"), record.get("kwargs"))
            records[key] = record
            record_counts[key] += 1
    problems += [f"{key} is in the trace {times} times" for key, times in record_counts.items() if times > 1]
    last = {}
    for call in session.calls:
        record = records.pop(_key(_recorded_id(call, session), call.function, call.kwargs), None)
        problems += _check_call(call, record, replay)
        if record is not None and call.envelope is not None:
            if record["index"] < last.get(call.client, -1):
                problems.append(f"{call} was sent after the answer to its client's last one, but recorded before it")
            last[call.client] = record["index"]
    problems += [f"no client sent {record}" for record in records.values()]


def _check_call(call, record, replay):
    """Yield the problems with the record of a call, and with its answer."""
    if SUSPECTED in str(_error(call)):  # a fault ended the worker at each attempt, so the server gave up
        if record is not None:
            yield f"{call} must not run again, but is in the trace: {record}"
    elif str(_error(call)).startswith(UNRECORDED):
        if record is not None or call.by != "guest" or not replay.was_full:
            yield f"{call} was refused, but {call.by} has calls left or the trace has it: {record}"
    elif record is None:
        if call.envelope is not None:
            yield f"{call} was acknowledged but is not in the trace"
    elif call.refused:
        yield f"{call} was refused with the words that nothing was changed, but is in the trace: {record}"
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
        received = received_of(record)
        return {"result": received["result"], "error": received["error"]}
    text = call.kwargs.get("text", call.kwargs.get("content"))
    return record["content"] == text and record.get("to") == call.kwargs.get("to")


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
            problems.append(f"it was reset to version {to_version} {times - unknown[to_version]} times more than asked")


def _check_messages(send, session, replay, problems):
    """Check that participants received the messages of the history in order, each once, and no other messages."""
    if not session.participants:
        return
    nodes_by_text = {}  # for each text, the first node after its message
    for node in itertools.chain(replay.last_nodes[0].path(), replay.nodes.values()):
        if node.messages is not None:
            nodes_by_text.setdefault(node.messages[0]["content"], node)
    for by, after, messages in session.deliveries:
        node = nodes_by_text.get(messages[-1]["content"])
        expected = node and node.conversation(by)[after + 1 :]
        received = [{name: message.get(name) for name in ("by", "to", "content")} for message in messages]
        indices = [message["index"] for message in messages]
        if received != expected or indices != [*range(after + 1, after + 1 + len(messages))]:
            problems.append(f"{by} received {messages[-3:]} after {after}, but a replay gives {(expected or [])[-3:]}")
    for by, (path, _) in session.paths.items():
        received = send("listen", {}, path)["messages"]
        expected = replay.node.conversation(by)
        if [{name: message.get(name) for name in ("by", "to", "content")} for message in received] != expected:
            problems.append(f"{by} receives {received[-3:]}, but a replay gives {expected[-3:]}")


def _check_list(send, sessions, unanswered_forks, problems):
    """Check that the server lists all sessions that clients have created, and no others."""
    listed_ids = []
    for labels in {json.dumps(session.labels) for session in sessions.values()}:
        after = {}
        while page := send("list_sessions", {"labels": json.loads(labels), "limit": PAGE} | after):
            listed_ids += [session["session_id"] for session in page]
            after = {"after": listed_ids[-1]}
    unknown_ids = {*listed_ids} - {*sessions}
    has_duplicates, is_complete = len(listed_ids) != len({*listed_ids}), {*sessions} <= {*listed_ids}
    if has_duplicates or not is_complete or len(unknown_ids) > 2 * unanswered_forks:
        problems["list"] = [f"{len(listed_ids)} sessions are listed, and no client created {len(unknown_ids)} of them"]
