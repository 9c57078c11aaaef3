"""Servers that break one guarantee each: this project's server with one change, in its process or in a proxy before it.

`BROKEN` lists the servers, each with the probe of `toolpack-server conform` that must detect the change.
"""

import asyncio
import contextlib
import copy
import itertools
import json
import threading
import time
import uuid
from functools import partial

import httpx

from toolpack_conformance.probes import (
    agents,
    atomic,
    deadline,
    exact,
    history,
    isolation,
    jsonrpc,
    limits,
    mcp,
    once,
    order,
    verdicts,
)
from toolpack_server.engine.queues import SessionQueue
from toolpack_server.execution.call import _run
from toolpack_server.execution.codec import Codec, PlainCodec
from toolpack_server.features.protocols.mcp import endpoint, headers
from toolpack_server.rpc import jsonrpc as rpc
from toolpack_server.sessions import calls, factory, operation
from toolpack_server.sessions.identity import Identities
from toolpack_server.sessions.manager import SessionManager

# ruff: noqa: ARG001, ARG002, ARG005 - each change uses only some of its arguments


class Proxy(httpx.BaseTransport):
    """A proxy that forwards all requests and answers unchanged. Each subclass breaks one guarantee.

    Attributes:
        sessions: The sessions that were created, by id, in the order of their creation.
        parents: The id of each fork's parent, by the fork's id.
    """

    def __init__(self):
        self._inner = httpx.HTTPTransport()
        self._lock = threading.Lock()
        self.sessions, self.parents, self.numbers = {}, {}, itertools.count()

    def close(self):
        self._inner.close()

    def handle_request(self, request):
        body, path = request.read(), request.url.path
        message = None
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(body)
        if isinstance(message, dict) and isinstance(message.get("params", {}), dict):
            message.setdefault("params", {})
            whole = copy.deepcopy(message)
            with self._lock:
                path, message = self.ask(path, message)
            body = body if message == whole else json.dumps(message).encode()
        else:
            message = None
        answer = self.forward(request, path, body)
        content = answer.read()
        kept = {name: value for name, value in answer.headers.items() if name in ("content-type", "mcp-session-id")}
        if message is not None and content and "event-stream" not in kept.get("content-type", ""):
            reply = json.loads(content)
            with self._lock:
                self._note(message, reply)
                changed = self.answer(message, copy.deepcopy(reply))
            content = content if changed == reply else json.dumps(changed).encode()
        return httpx.Response(self.status(answer.status_code), headers=kept, content=self.content(body, content))

    def _note(self, message, reply):
        result = reply.get("result")
        if message.get("method") == "create_session" and result:
            self.sessions[result["session_id"]] = result
        if message.get("method") == "fork_session" and result:
            for fork in result:
                self.sessions[fork["session_id"]] = fork
                self.parents[fork["session_id"]] = message["params"]["session_id"]

    def forward(self, request, path, body):
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        self.url = request.url
        url = request.url.copy_with(path=path)
        return self._inner.handle_request(httpx.Request(request.method, url, headers=headers, content=body))

    def send(self, method, params, path="/rpc"):
        """Send an additional request, and return the result."""
        body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).encode()
        headers = {"Content-Type": "application/json"}
        request = httpx.Request("POST", self.url, headers=headers)
        return json.loads(self.forward(request, path, body).read()).get("result")

    def ask(self, path, message):
        return path, message

    def answer(self, message, reply):
        return reply

    def status(self, status):
        return status

    def content(self, body, content):
        return content


def called(message):
    return message["params"].get("function") if message.get("method") == "run_function" else None


def session_of(message):
    return message["params"].get("session_id")


def replaced(reply, result):
    return {"jsonrpc": "2.0", "result": result, "id": reply["id"]}


def asks(change):
    """Return a proxy that changes requests. `change` may modify the message, and may return another path."""

    class Asks(Proxy):
        def ask(self, path, message):
            return change(self, message) or path, message

    return Asks


def answers(method, change):
    """Return a proxy that changes the results of a method. The method `*` stands for all methods.

    `change` returns the new result.
    """

    class Answers(Proxy):
        def answer(self, message, reply):
            if "result" in reply and method in ("*", message.get("method")):
                return replaced(reply, change(reply["result"]))
            return reply

    return Answers


def returns(function, change):
    """Return a proxy that changes the results of a function."""

    class Returns(Proxy):
        def answer(self, message, reply):
            if called(message) == function and reply.get("result"):
                reply["result"]["result"] = change(reply["result"]["result"])
            return reply

    return Returns


def replies(change):
    """Return a proxy that changes whole responses. `change` gets the proxy, the message and the response."""

    class Replies(Proxy):
        def answer(self, message, reply):
            return change(self, message, reply)

    return Replies


def contents(change):
    """Return a proxy that changes the bodies of responses. `change` gets the request's and the response's body."""

    class Contents(Proxy):
        def content(self, body, content):
            return change(body, content)

    return Contents


def without(name, method=None):
    return asks(lambda _, message: method in (None, message["method"]) and message["params"].pop(name, None) and None)


# Isolation


class OneSession(Proxy):
    def answer(self, message, reply):
        if message["method"] == "create_session" and "result" in reply:
            return replaced(reply, next(iter(self.sessions.values())))
        return reply


class ClosesNothing(Proxy):
    def ask(self, path, message):
        if message["method"] == "close_session":
            message["method"] = "get_session"
        return path, message

    def answer(self, message, reply):
        return replaced(reply, 1) if message["method"] == "get_session" and "result" in reply else reply


class OneNoteForAll(Proxy):
    note = ""

    def answer(self, message, reply):
        if called(message) == "write_note":
            self.note = message["params"]["kwargs"]["text"]
        return replaced(reply, {"result": self.note, "error": None}) if called(message) == "read_note" else reply


def addresses_outlive(patch):
    """Answer at the address of an agent after its session was closed."""

    async def agent_session(self, agent_key, original=SessionManager.agent_session):
        kept = self.__dict__.setdefault("kept", {})
        with contextlib.suppress(Exception):
            kept[agent_key] = await original(self, agent_key)
        return kept[agent_key]

    patch.setattr(SessionManager, "agent_session", agent_session)


def any_label(proxy, message):
    labels = message["params"].get("labels")
    if message["method"] in ("list_sessions", "close_session") and labels and len(labels) > 1:
        message["params"]["labels"] = dict([*labels.items()][:1])


# Atomic


def failures_are_kept(patch, *, version):
    """Commit the changes of a failed call."""

    def run(world):
        outcome = yield from _run(world)
        if outcome.failure is not None and not world.plan.read_only:
            world.may_change("conform")
            outcome.blobs = {part: world.context.codec.encode(part, world.touched[part]) for part in world.dirty}
            outcome.live, outcome.changes = world.touched, version
        return outcome

    patch.setattr("toolpack_server.execution.call._run", run)


def failures_stay_in_the_cache(patch):
    """Leave the object that a failed call changed in the cache."""

    def run(world):
        outcome = yield from _run(world)
        if outcome.failure is not None:
            outcome.live = world.touched
        return outcome

    patch.setattr("toolpack_server.execution.call._run", run)


def only_fields_are_rolled_back(patch):
    """Roll back plain fields after a failure, but not lists and private attributes, as with a shallow copy."""

    def run(world):
        outcome = yield from _run(world)
        if outcome.failure is not None and world.plan.function == "add_and_fail" and world.touched:
            for environment in world.touched.values():
                environment.total -= world.plan.arguments.get("amount", 0)
            outcome.live = world.touched
        return outcome

    patch.setattr("toolpack_server.execution.call._run", run)


def unstorable_is_left_out(patch):
    """Drop values that can't be stored, without an error."""

    def encode(self, part, environment, original=PlainCodec.encode):
        if any(map(callable, getattr(environment, "kept", ()))):
            environment.kept = ()
        return original(self, part, environment)

    patch.setattr(PlainCodec, "encode", encode)
    patch.setattr(Codec, "encode", encode)


def nested_calls_are_kept(proxy, message):
    """Run a nested call as a separate call before the outer one."""
    for name, value in message["params"].get("kwargs", {}).items():
        if isinstance(value, dict) and "$call" in value:
            inner = {"function": value["$call"]["function"], "kwargs": value["$call"]["args"]}
            envelope = proxy.send("run_function", {"session_id": session_of(message), **inner})
            message["params"]["kwargs"][name] = envelope["result"]


class FailuresCount(Proxy):
    """Creates a version for a failed call."""

    def answer(self, message, reply):
        if reply.get("result", {}) and called(message) and reply["result"].get("error"):
            self.send("run_function", {"session_id": session_of(message), "function": "add", "kwargs": {"amount": 0}})
        return reply


class DiffsWithoutRemovals(Proxy):
    def answer(self, message, reply):
        if message["method"] == "diff_environment" and "result" in reply:
            return replaced(reply, [step for step in reply["result"] if step["op"] != "remove"])
        return reply


# Exactly once


def repeats_are_kept(patch, key, forgets=lambda answers, operation, outcome: None):
    """Store the answers to repeated calls under another key."""
    answers = {}

    async def run(self, operation, original=SessionManager.run):
        if not isinstance(operation, calls.CallOperation) or operation.call_id is None:
            return await original(self, operation)
        place = key(operation)
        operation.call_id = operation.recorded_call_id = None
        if place in answers:
            return answers[place]
        answers[place] = await original(self, operation)
        forgets(answers, operation, answers[place])
        return answers[place]

    patch.setattr(SessionManager, "run", run)


def forget_failures(answers, operation, outcome):
    if outcome.failure is not None:
        answers.popitem()


def forget_old(answers, operation, outcome):
    while len(answers) > 100:
        answers.pop(next(iter(answers)))


def digest_of_the_function(patch):
    """Treat two calls as equal if they have the same function."""
    patch.setattr(calls.CallOperation, "asked", lambda self: [self.request.function])


def any_request_is_the_same(patch):
    """Treat two requests to create sessions as equal if they have the same call_id."""

    def creation(self, owner, call_id, request, original=Identities.creation):
        return original(self, owner, call_id, request[:1])

    patch.setattr(Identities, "creation", creation)


class ForgetsAtReset(Proxy):
    """Frees the call_ids from before a reset."""

    def __init__(self):
        super().__init__()
        self.resets = {}

    def ask(self, path, message):
        session_id = session_of(message)
        if message["method"] == "reset_session":
            self.resets[session_id] = self.resets.get(session_id, 0) + 1
        elif message["params"].get("call_id") and session_id in self.resets:
            message["params"]["call_id"] += str(self.resets[session_id])
        return path, message


class ForksRemember(Proxy):
    """Answers a call_id in a fork with the record of the parent's call."""

    def __init__(self):
        super().__init__()
        self.used = set()

    def ask(self, path, message):
        session_id, call_id = session_of(message), message["params"].get("call_id")
        if called(message) and call_id and (self.parents.get(session_id), call_id) in self.used:
            message["params"]["session_id"] = self.parents[session_id]
        self.used.add((session_id, call_id))
        return path, message


def refusals_use_call_ids(patch):
    """Consume the call_id of a rejected call."""
    refused = set()

    async def run(self, operation, original=SessionManager.run):
        if operation.call_id in refused:
            raise calls.VersionConflictError(0, 0)
        try:
            return await original(self, operation)
        except calls.VersionConflictError:
            refused.add(operation.call_id)
            raise

    patch.setattr(SessionManager, "run", run)


def version_first(patch):
    """Check the expected version first, so that a repeated call fails instead of getting its first answer."""

    def steps(self, state, start_clock, original=operation.SessionOperation.steps):
        expected = getattr(getattr(self, "request", None), "expected_version", None)
        if expected is not None and expected != state.version:
            raise calls.VersionConflictError(expected, state.version)
        return (yield from original(self, state, start_clock))

    patch.setattr(operation.SessionOperation, "steps", steps)


# Ordered


def last_come_first_served(patch):
    patch.setattr(order, "TRIES", 1)

    def take_next(self, original=SessionQueue.take_next):
        self.jobs.reverse()
        job = original(self)
        self.jobs.reverse()
        return job

    patch.setattr(SessionQueue, "take_next", take_next)


def updates_are_lost(patch, *, by=("client", "agent")):
    """Run concurrent calls on the same version, so that the change of one of them is lost."""
    running = {}

    async def run(self, operation, original=SessionManager.run):
        if not isinstance(operation, calls.CallOperation) or operation.by not in by:
            return await original(self, operation)
        session_id = operation.session_id
        if running.get(session_id):
            request = factory.ForkRequest(session_id=session_id)
            operation.session_id = (await self.fork(operation.owner, request))[0]["session_id"]
            return await original(self, operation)
        running[session_id] = True
        try:
            return await original(self, operation)
        finally:
            running[session_id] = False

    patch.setattr(SessionManager, "run", run)


async def _together(self, caller, batch):
    async def answer(number, member):
        await asyncio.sleep(0 if number else 0.05)
        return await self._answer_one(caller, member, 1 << 20)

    replies = await asyncio.gather(*(answer(*each) for each in enumerate(batch)))
    return b"[%b]" % b",".join(reply for reply in replies if reply)


async def _backwards(self, caller, batch):
    replies = [await self._answer_one(caller, member, 1 << 20) for member in reversed(batch)]
    return b"[%b]" % b",".join(reply for reply in replies if reply)


def batches_are(answer, patch):
    patch.setattr(rpc.JsonRpc, "_answer_batch", answer)


def kept_records(keep):
    return answers("get_trace", lambda records: [record for record in records if keep(record)])


# Expected version


def compared_before_its_turn(patch):
    """Check the expected version when the call arrives, instead of when the calls before it have ended."""

    async def run(self, operation, original=SessionManager.run):
        request = getattr(operation, "request", None)
        if request is not None and request.expected_version is not None:
            described = await self.read(lambda reader: reader.describe(operation.session_id, operation.owner))
            if described["version"] != request.expected_version:
                raise calls.VersionConflictError(request.expected_version, described["version"])
            operation.request = request._replace(expected_version=None)
        return await original(self, operation)

    patch.setattr(SessionManager, "run", run)


def expected(holds):
    def change(proxy, message):
        params = message["params"]
        if "expected_version" in params and "call_id" not in params and session_of(message):
            version = proxy.send("get_session", {"session_id": session_of(message)})["version"]
            if holds(params["expected_version"], version):
                params["expected_version"] = version

    return asks(change)


# Fork and reset


class OnlyTheFirstForkIsOlder(Proxy):
    """Uses the current version for each fork of a request, except for the first fork."""

    def answer(self, message, reply):
        params = message["params"]
        if message["method"] == "fork_session" and "version" in params and len(reply.get("result", ())) > 1:
            rest = {**params, "count": len(reply["result"]) - 1}
            del rest["version"]
            return replaced(reply, [reply["result"][0], *self.send("fork_session", rest)])
        return reply


class OnlyTheFirstForkHasLabels(Proxy):
    def answer(self, message, reply):
        if message["method"] == "fork_session" and "result" in reply:
            first, *others = reply["result"]
            return replaced(reply, [first, *(fork | {"labels": {}} for fork in others)])
        return reply


class ForksOfARequestShareAnAgent(Proxy):
    def answer(self, message, reply):
        if message["method"] == "fork_session" and "result" in reply:
            path = reply["result"][0]["agent_path"]
            return replaced(reply, [fork | {"agent_path": path} for fork in reply["result"]])
        return reply


def in_parent(functions):
    """Return a proxy that runs calls of these functions in the parent of a fork."""

    def change(proxy, message):
        if called(message) in functions and session_of(message) in proxy.parents:
            message["params"]["session_id"] = proxy.parents[session_of(message)]

    return asks(change)


class ForksAreParents(Proxy):
    def answer(self, message, reply):
        if message["method"] != "fork_session":
            return reply
        parent = self.sessions[session_of(message)]
        return replaced(reply, [parent] * len(reply["result"]))


class ForksDieWithParents(Proxy):
    def answer(self, message, reply):
        if message["method"] == "close_session" and "result" in reply:
            for fork, parent in self.parents.items():
                if parent == session_of(message):
                    self.send("close_session", {"session_id": fork})
        return reply


def forks(change):
    return answers("fork_session", lambda forks: [fork | change(fork) for fork in forks])


class ForksHaveTheAgentOfTheirParent(Proxy):
    def answer(self, message, reply):
        if message["method"] == "fork_session" and "result" in reply:
            parent = self.sessions[session_of(message)]
            return replaced(reply, [fork | {"agent_path": parent["agent_path"]} for fork in reply["result"]])
        return reply


class ResetsNothing(Proxy):
    def ask(self, path, message):
        if message["method"] == "reset_session":
            message["method"] = "get_session"
            message["params"].pop("version", None)
        return path, message


class ResetsLeaveTheNote(Proxy):
    def ask(self, path, message):
        if message["method"] == "reset_session":
            run = {"session_id": session_of(message), "function": "read_note"}
            self.note = self.send("run_function", run)["result"]
        return path, message

    def answer(self, message, reply):
        if message["method"] == "reset_session" and "result" in reply:
            kwargs = {"text": self.note}
            self.send("run_function", {"session_id": session_of(message), "function": "write_note", "kwargs": kwargs})
        return reply


class ResetsForgetTheFuture(Proxy):
    """Removes the versions after the version that a reset restores."""

    def ask(self, path, message):
        if message["method"] == "reset_session":
            version = message["params"].get("version", 0)
            last = self.__dict__.setdefault("last", {})
            if version > last.get(session_of(message), version):
                message["params"]["version"] = 10**6
            last[session_of(message)] = version
        return path, message


class VersionsAreTheSameObject(Proxy):
    """Lets the calls after a reset change the stored version that the reset restored."""

    def __init__(self):
        super().__init__()
        self.at = {}

    def ask(self, path, message):
        if message["method"] == "reset_session":
            params = message["params"]
            place = session_of(message), params.get("version", 0)
            if place in self.at:
                params["version"] = self.send("get_session", {"session_id": place[0]})["version"]
            self.at[place] = True
        return path, message


class ResetsForksToo(Proxy):
    def answer(self, message, reply):
        if message["method"] == "reset_session":
            for fork, parent in self.parents.items():
                if parent == session_of(message):
                    self.send("reset_session", {"session_id": fork})
        return reply


# Exact


def restored(change, patch):
    """Restore a value from its bytes that differs from the stored value."""

    def thaw(self, payload, original=PlainCodec.thaw):
        environment = original(self, payload)
        return change(environment) if hasattr(environment, "total") else environment

    patch.setattr(PlainCodec, "thaw", thaw)


def as_json(environment):
    return type(environment).model_validate_json(environment.model_dump_json())


def validated(environment):
    again = type(environment).model_validate(environment.model_dump(serialize_as_any=True) | {"thing": None})
    again._note = environment._note
    again.second = again.first
    if environment.thing is not None:
        again.thing = type(environment.thing).model_validate(environment.thing.model_dump())
    return again


def field_by_field(environment):
    environment.second = [*environment.second]
    return environment


def without_private(environment):
    environment._note = ""
    return environment


def lists_for_tuples(environment):
    environment.kept = tuple([*value] if isinstance(value, tuple) else value for value in environment.kept)
    return environment


def floats_for_decimals(environment):
    environment.kept = tuple(float(value) if hasattr(value, "quantize") else value for value in environment.kept)
    return environment


def base_classes(environment):
    if environment.thing is not None:
        fields = {"name": environment.thing.name}
        environment.thing = type(environment.thing).__mro__[1].model_construct(**fields)
    return environment


# Deadline


class CommitsLate(Proxy):
    """Answers that a call missed its deadline, but lets it continue and commits its changes."""

    def handle_request(self, request):
        message = json.loads(request.read() or b"{}")
        timeout = message.get("params", {}).pop("timeout_seconds", None) if isinstance(message, dict) else None
        if timeout is None:
            return super().handle_request(request)
        message["params"].pop("call_id", None)
        late = partial(self.forward, request, "/rpc", json.dumps(message).encode())
        threading.Thread(target=late, daemon=True).start()
        time.sleep(timeout)
        error = {"result": "", "error": "TimeoutError: it took too long"}
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": message["id"], "result": error})


def few_threads(patch):
    """Let a few waiting calls block all others."""
    patch.setattr(deadline, "WAITS", (2,))
    semaphore = asyncio.Semaphore(32)

    async def run(self, operation, original=SessionManager.run):
        async with semaphore:
            return await original(self, operation)

    patch.setattr(SessionManager, "run", run)


# Secrecy


def agents_may(method, **implied):
    """Return a proxy that allows one more method at the address of an agent."""

    class May(Proxy):
        def ask(self, path, message):
            if path.startswith("/agents/") and message["method"] == method:
                mine = [each for each in self.sessions.values() if each["agent_path"] == path]
                if method not in ("list_sessions", "list_tasks", "list_toolpacks", "summarize_sessions"):
                    message["params"].setdefault("session_id", mine[0]["session_id"])
                return "/rpc", message
            return path, message

    return May


class KeysAreCompletedIfTheyBegin(Proxy):
    """Accepts the beginning of a key."""

    def ask(self, path, message):
        if path.startswith("/agents/") and len(path) > 20:
            paths = [each["agent_path"] for each in self.sessions.values() if each["agent_path"].startswith(path)]
            path = (paths or [path])[0]
        return path, message


class NumberedKeys(Proxy):
    def __init__(self):
        super().__init__()
        self.real = {}

    def ask(self, path, message):
        return self.real.get(path, path), message

    def answer(self, message, reply):
        if message["method"] == "create_session" and "result" in reply:
            path = f"/agents/{next(self.numbers):048d}"
            self.real[path] = reply["result"]["agent_path"]
            return replaced(reply, reply["result"] | {"agent_path": path})
        return reply


def ids_are(make):
    """Return a proxy that gives sessions ids of another form, and translates these ids to the real ids."""

    class Renamed(Proxy):
        def __init__(self):
            super().__init__()
            self.real = {}

        def ask(self, path, message):
            for name in ("session_id", "parent"):
                alias = message["params"].get(name)
                if alias in self.real:
                    message["params"][name] = self.real[alias]
            return path, message

        def answer(self, message, reply):
            if message["method"] in ("create_session", "fork_session") and "result" in reply:
                sessions = reply["result"] if isinstance(reply["result"], list) else [reply["result"]]
                for each in sessions:
                    alias = make(next(self.numbers))
                    self.real[alias], each["session_id"] = each["session_id"], alias
            return reply

    return Renamed


class AgentsNameSessions(Proxy):
    def ask(self, path, message):
        return ("/rpc" if session_of(message) and called(message) else path), message


class AgentsHearTheId(Proxy):
    def answer(self, message, reply):
        if "session_id" not in message["params"] and "error" in reply:
            reply["error"]["message"] += f" in {[*self.sessions][-1]}"
        return reply


def tells_agents(method, secret):
    """Return a proxy that adds a secret of the session to an agent's result of a method."""

    class Tells(Proxy):
        def ask(self, path, message):
            self.path = path
            return path, message

        def answer(self, message, reply):
            if self.path.startswith(("/agents/", "/mcp/")) and message["method"] == method and "result" in reply:
                reply["result"]["about"] = secret([*self.sessions.values()][-1])
            return reply

    return Tells


class TracesHaveTheKey(Proxy):
    def answer(self, message, reply):
        if message["method"] == "get_trace" and reply.get("result"):
            reply["result"][0]["at"] = self.sessions[session_of(message)]["agent_path"]
        return reply


class ErrorsHaveTheKey(Proxy):
    def answer(self, message, reply):
        if "error" in reply and session_of(message) in self.sessions:
            reply["error"]["message"] += self.sessions[session_of(message)]["agent_path"]
        return reply


# Faults


def fault_is_zero(proxy, message, reply):
    if message["method"] == "evaluate_session" and "error" in reply:
        return replaced(reply, {"reward": 0.0, "passed": False})
    return reply


def fault_counts(summary):
    for each in summary["sessions"]:
        each["verdict"]["reward"] = each["verdict"]["reward"] or 0.0
    return summary


class EvaluatesTheWorldItself(Proxy):
    """Keeps the changes that an evaluator makes to the environment."""

    def answer(self, message, reply):
        if message["method"] == "evaluate_session" and "result" in reply:
            run = {"session_id": session_of(message), "function": "add", "kwargs": {"amount": 100}}
            self.send("run_function", run)
        return reply


def forks_are_judged_as_parents(proxy, message):
    if message["method"] == "evaluate_session" and session_of(message) in proxy.parents:
        message["params"]["session_id"] = proxy.parents[session_of(message)]


# Limits


class TakesEverything(Proxy):
    def handle_request(self, request):
        if len(request.read()) > 1 << 20:
            return httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": None})
        return super().handle_request(request)


class DiesOfDepth(Proxy):
    dead = False

    def handle_request(self, request):
        self.dead = self.dead or request.read().count(b"[") > 10_000
        if self.dead:
            raise httpx.ConnectError("nobody listens")
        return super().handle_request(request)


# JSON-RPC


def unknown_sessions_are_wrong_parameters(method):
    """Return a proxy that rejects an unknown session with another code in one method."""

    def change(_proxy, message, reply):
        if message["method"] == method and reply.get("error", {}).get("code") == -32001:
            reply["error"]["code"] = -32602
        return reply

    return replies(change)


def ids_are_doubles(_proxy, _message, reply):
    return reply | {"id": int(float(reply["id"])) if isinstance(reply["id"], int) else reply["id"]}


class HangsUp(Proxy):
    def handle_request(self, request):
        if b"run_function" in request.read():
            raise httpx.RemoteProtocolError("it hung up")
        return super().handle_request(request)


class AnyContentType(Proxy):
    def forward(self, request, path, body):
        request.headers["Content-Type"] = "application/json"
        return super().forward(request, path, body)


class NullIsNoId(Proxy):
    def content(self, body, content):
        return b"" if b'"id": null' in body and b'"jsonrpc": "2.0"' in body else content


class StatusesOfRest(Proxy):
    def content(self, body, content):
        self.failed = b'"error":{' in content
        return content

    def handle_request(self, request):
        response = super().handle_request(request)
        return httpx.Response(400, headers=response.headers, content=response.content) if self.failed else response


def notified_of_errors(body, content):
    if not content and b"foobar" in body:
        return b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Method not found"}}'
    return content


def invalid_members_left_out(body, content):
    if not body.startswith(b"["):
        return content
    with contextlib.suppress(ValueError):
        members = json.loads(content)
        return json.dumps([each for each in members if each["id"] is not None]).encode()
    return content


def batches_of_one_are_unpacked(body, content):
    with contextlib.suppress(ValueError):
        members = json.loads(content)
        if isinstance(members, list) and len(members) == 1:
            return json.dumps(members[0]).encode()
    return content


def unknown_parameters_are_ignored(proxy, message):
    message["params"].pop("other", None)


# MCP


def tool_calls(change):
    return answers("tools/call", change)


def tools(change):
    return answers("tools/list", lambda result: {**result, "tools": [change(tool) for tool in result["tools"]]})


def double_encoded(result):
    block = result["content"][0]
    return {**result, "content": [{**block, "text": json.dumps(block["text"])}]}


class DeleteEnds(Proxy):
    def handle_request(self, request):
        if request.method == "DELETE":
            for session_id in self.sessions:
                self.send("close_session", {"session_id": session_id})
        return super().handle_request(request)


class MessagesAreCallIds(Proxy):
    def ask(self, path, message):
        if message["method"] == "tools/call":
            message["params"].setdefault("_meta", {}).setdefault("toolpack-server/call_id", str(message.get("id")))
        return path, message


class UnknownToolsAreResults(Proxy):
    def answer(self, message, reply):
        if message["method"] == "tools/call" and reply.get("error", {}).get("code") == -32602:
            return replaced(reply, {"content": [{"type": "text", "text": "no such tool"}], "isError": True})
        return reply


class NotificationsAreAnswered(Proxy):
    def handle_request(self, request):
        response = super().handle_request(request)
        return httpx.Response(200, json={}) if b"notifications/" in request.read() else response


def codes(old, new):
    return contents(lambda _, content: content.replace(str(old).encode(), str(new).encode()))


def setting(**settings):
    """Return settings for a server with other limits."""
    return settings


def patched(target, name, value):
    if isinstance(target, str):
        return lambda patch: patch.setattr(f"{target}.{name}", value)
    return lambda patch: patch.setattr(target, name, value)


MANY = 1 << 30
BROKEN = [
    # isolation
    (isolation.sessions_are_isolated, OneSession),
    (isolation.sessions_are_isolated, OneNoteForAll),
    (isolation.sessions_are_isolated, HangsUp),
    (isolation.many_sessions_at_once, OneSession),
    (isolation.a_closed_session_is_gone, ClosesNothing),
    (isolation.a_closed_session_is_gone, codes(-32001, -32603)),
    (isolation.a_closed_session_is_gone, addresses_outlive),
    *[
        (isolation.a_closed_session_is_gone, unknown_sessions_are_wrong_parameters(method))
        for method in isolation._OF_A_SESSION
    ],
    (isolation.labels_select_sessions, asks(any_label)),
    (isolation.labels_select_sessions, answers("close_session", lambda _: True)),
    # atomic
    (atomic.a_failed_call_changes_nothing, partial(failures_are_kept, version=True)),
    (atomic.a_failed_call_changes_nothing, partial(failures_are_kept, version=False)),
    (atomic.a_failed_call_changes_nothing, failures_stay_in_the_cache),
    (atomic.a_failed_call_changes_nothing, only_fields_are_rolled_back),
    (atomic.a_failed_call_changes_nothing, FailuresCount),
    (atomic.a_failed_call_of_an_agent_changes_nothing, failures_stay_in_the_cache),
    (atomic.raise_on_error_gives_jsonrpc_errors, without("raise_on_error")),
    (atomic.raise_on_error_gives_jsonrpc_errors, codes(-32003, -32602)),
    (atomic.a_failed_nested_call_changes_nothing, asks(nested_calls_are_kept)),
    (
        atomic.agent_errors_are_in_the_envelope,
        asks(lambda _, message: message["params"].update(raise_on_error=True) if called(message) else None),
    ),
    (atomic.unstorable_state_fails, unstorable_is_left_out),
    (
        atomic.versions_count_changes,
        asks(
            lambda _, message: (
                message["params"].update(function="add", kwargs={"amount": 0}) if called(message) == "total" else None
            )
        ),
    ),
    (atomic.versions_count_changes, without("version", "get_environment")),
    (atomic.versions_count_changes, answers("diff_environment", lambda _: [])),
    (atomic.versions_count_changes, DiffsWithoutRemovals),
    # exactly once
    (once.a_repeat_runs_nothing, without("call_id")),
    (once.a_repeat_runs_nothing, returns("add", lambda total: total if total < 3 else next(itertools.count(4)))),
    (once.a_failure_is_repeated_too, partial(repeats_are_kept, key=lambda o: o.call_id, forgets=forget_failures)),
    (once.repeats_at_the_same_time, partial(repeats_are_kept, key=lambda o: (o.session_id, o.call_id))),
    (once.another_call_with_the_same_id, digest_of_the_function),
    (once.another_call_with_the_same_id, partial(repeats_are_kept, key=lambda o: (o.session_id, o.call_id))),
    (once.a_repeat_ignores_expected_version, version_first),
    (once.call_ids_are_separate_per_session, partial(repeats_are_kept, key=lambda o: o.call_id)),
    (once.call_ids_are_separate_per_session, partial(repeats_are_kept, key=lambda o: (o.session_id, o.call_id))),
    (once.call_ids_are_separate_per_session, ForksRemember),
    (once.call_ids_are_compared_as_a_whole, partial(repeats_are_kept, key=lambda o: o.call_id.lower())),
    (once.call_ids_are_compared_as_a_whole, partial(repeats_are_kept, key=lambda o: o.call_id[:64])),
    (once.call_ids_are_compared_as_a_whole, partial(repeats_are_kept, key=lambda o: o.call_id.strip())),
    (
        once.call_ids_are_not_forgotten,
        partial(repeats_are_kept, key=lambda o: (o.session_id, o.call_id), forgets=forget_old),
    ),
    (once.call_ids_are_not_forgotten, ForgetsAtReset),
    (once.refused_calls_use_no_call_id, refusals_use_call_ids),
    (once.sessions_are_created_once, without("call_id", "create_session")),
    (once.sessions_are_created_once, without("call_id", "fork_session")),
    (once.sessions_are_created_once, any_request_is_the_same),
    (once.a_session_is_reset_once, without("call_id", "reset_session")),
    # ordered
    (order.calls_run_one_at_a_time, updates_are_lost),
    (order.calls_run_one_at_a_time, returns("add_and_wait", lambda _: 1)),
    (order.agents_and_clients_share_one_order, partial(updates_are_lost, by=["agent"])),
    (order.calls_run_in_order_of_arrival, last_come_first_served),
    (order.a_batch_runs_in_order, partial(batches_are, _together)),
    (order.a_batch_runs_in_order, partial(batches_are, _backwards)),
    (order.the_trace_has_every_call, kept_records(lambda record: record.get("failure") is None)),
    (order.the_trace_has_every_call, kept_records(lambda record: record["function"] != "total")),
    (
        order.the_trace_has_every_call,
        kept_records(lambda record: record.get("failure") is None or record["by"] != "agent"),
    ),
    (order.the_trace_has_every_call, answers("get_trace", lambda records: records[::-1])),
    (order.the_trace_has_every_call, without("after", "get_trace")),
    (order.the_trace_has_every_call, without("limit", "get_trace")),
    # expected version
    (order.a_call_at_another_version_is_refused, without("expected_version")),
    (order.a_call_at_another_version_is_refused, expected(lambda number, version: number > version)),
    (order.a_call_at_another_version_is_refused, expected(lambda number, version: number < version)),
    (
        order.a_call_at_another_version_is_refused,
        asks(lambda _, m: m["params"].pop("expected_version", None) and None if called(m) == "total" else None),
    ),
    (order.versions_are_compared_as_numbers, expected(lambda number, version: str(version).startswith(str(number)))),
    (order.versions_are_compared_as_numbers, expected(lambda number, version: str(number) > str(version))),
    (order.versions_are_compared_as_numbers, expected(lambda number, version: number % 10 == version % 10)),
    (order.one_of_several_wins, compared_before_its_turn),
    (order.resets_change_the_version_failures_do_not, partial(failures_are_kept, version=True)),
    # fork
    (history.forks_are_independent, ForksAreParents),
    (history.forks_are_independent, in_parent(["append", "second"])),
    (history.forks_are_independent, in_parent(["write_note", "read_note"])),
    (history.a_fork_is_a_new_session, forks(lambda fork: {"parent": None})),
    (history.a_fork_is_a_new_session, ForksHaveTheAgentOfTheirParent),
    (history.a_fork_is_a_new_session, without("labels", "fork_session")),
    (history.a_fork_is_a_new_session, without("parent", "list_sessions")),
    (
        history.a_fork_is_a_new_session,
        asks(lambda _, m: m["params"].update(path=True) if m["method"] == "get_trace" else None),
    ),
    (history.all_forks_of_a_request_are_alike, OnlyTheFirstForkIsOlder),
    (history.all_forks_of_a_request_are_alike, OnlyTheFirstForkHasLabels),
    (history.all_forks_of_a_request_are_alike, ForksOfARequestShareAnAgent),
    (history.an_older_version_can_be_forked, without("version", "fork_session")),
    (history.an_older_version_can_be_forked, codes(-32011, -32602)),
    (history.a_fork_can_be_forked, without("path", "get_trace")),
    (history.a_fork_outlives_its_parent, ForksDieWithParents),
    # reset
    (history.a_reset_restores_a_version, ResetsNothing),
    (history.a_reset_restores_a_version, ResetsLeaveTheNote),
    (history.a_reset_restores_a_version, ResetsForgetTheFuture),
    (history.a_reset_restores_a_version, without("version", "reset_session")),
    (history.a_reset_restores_a_version, answers("reset_session", lambda result: result | {"version": 1})),
    (history.a_reset_restores_a_version, answers("reset_session", lambda result: result | {"agent_path": "/agents/0"})),
    (history.later_changes_keep_old_versions, VersionsAreTheSameObject),
    (history.a_reset_affects_one_session, ResetsForksToo),
    (history.a_reset_keeps_the_records, ForgetsAtReset),
    (history.a_reset_keeps_the_records, kept_records(lambda record: record["kind"] == "call")),
    (history.a_reset_keeps_the_records, without("path", "get_trace")),
    # exact
    (exact.shared_objects_stay_shared, partial(restored, field_by_field)),
    (exact.shared_objects_stay_shared, partial(restored, as_json)),
    (exact.private_state_is_kept, partial(restored, without_private)),
    (exact.private_state_is_kept, answers("get_environment", lambda _: {"conform": {"note": "a private note"}})),
    (exact.types_are_kept, partial(restored, lists_for_tuples)),
    (exact.types_are_kept, partial(restored, floats_for_decimals)),
    (exact.types_are_kept, partial(restored, base_classes)),
    (exact.types_are_kept, partial(restored, validated)),
    (exact.types_are_kept, returns("kept_types", lambda result: [text.replace("{3}", "[3]") for text in result])),
    (exact.numbers_and_texts_are_exact, returns("add", lambda total: int(float(total)))),
    (exact.numbers_and_texts_are_exact, returns("read_note", lambda text: text.replace("\0", ""))),
    # deadline
    (deadline.a_deadline_is_kept, returns("add_and_wait", lambda _: 1)),
    (deadline.a_deadline_is_kept, kept_records(lambda record: record.get("failure") != "deadline")),
    (deadline.late_changes_are_dropped, CommitsLate),
    (
        deadline.raise_on_error_applies_to_deadlines,
        asks(lambda _, m: m["params"]["kwargs"].update(seconds=0) if called(m) == "add_and_wait" else None),
    ),
    (deadline.waiting_calls_delay_no_other_session, few_threads),
    # secrecy
    *[
        (agents.an_agent_controls_nothing, agents_may(method))
        for method in ("reset_session", "get_environment", "export_bundle", "list_tasks", "close_session")
    ],
    (agents.an_agent_stays_in_its_session, AgentsNameSessions),
    (agents.an_agents_path_is_a_secret, KeysAreCompletedIfTheyBegin),
    (agents.an_agents_path_is_a_secret, NumberedKeys),
    (
        agents.an_agents_path_is_a_secret,
        answers("create_session", lambda result: result | {"agent_path": f"/agents/{result['session_id']}"}),
    ),
    (agents.a_sessions_id_cant_be_guessed, ids_are(str)),
    (agents.a_sessions_id_cant_be_guessed, ids_are(lambda number: f"{number:032x}")),
    (agents.a_sessions_id_cant_be_guessed, ids_are(lambda _: uuid.uuid1().hex)),
    (agents.an_agent_learns_no_id, AgentsHearTheId),
    (agents.an_agent_learns_no_id, tells_agents("get_task", lambda session: session["task"])),
    (agents.an_agent_learns_no_id, tells_agents("run_function", lambda session: session["session_id"])),
    (agents.agent_keys_are_only_in_descriptions, TracesHaveTheKey),
    (agents.agent_keys_are_only_in_descriptions, ErrorsHaveTheKey),
    # faults are no rewards
    (verdicts.tasks_are_evaluated, without("version", "evaluate_session")),
    (
        verdicts.tasks_are_evaluated,
        answers("evaluate_session", lambda result: result | {"reward": 1.0, "passed": True}),
    ),
    (verdicts.an_evaluator_that_fails_gives_no_reward, replies(fault_is_zero)),
    (
        verdicts.an_evaluator_that_fails_gives_no_reward,
        answers("evaluate_session", lambda result: result | {"reward": result["reward"] or 0.0}),
    ),
    (
        verdicts.an_evaluator_that_fails_gives_no_reward,
        answers("evaluate_session", lambda result: result | {"valid": True}),
    ),
    (verdicts.faults_do_not_count_in_rates, answers("summarize_sessions", fault_counts)),
    (verdicts.evaluation_changes_nothing, EvaluatesTheWorldItself),
    (
        verdicts.evaluation_changes_nothing,
        asks(lambda _, m: m["params"].update(record=True) if m["method"] == "evaluate_session" else None),
    ),
    (verdicts.forks_have_their_own_verdict, asks(forks_are_judged_as_parents)),
    # limits
    (limits.a_large_result_is_refused, setting(max_result_bytes=MANY, max_body_bytes=MANY)),
    (limits.a_large_environment_is_refused, setting(max_environment_bytes=MANY)),
    (limits.a_large_request_is_refused, TakesEverything),
    (limits.deep_json_is_refused, DiesOfDepth),
    (limits.nested_calls_have_a_limit, patched(calls, "MAX_NESTED_CALLS", MANY)),
    (limits.nested_calls_have_a_limit, patched("toolpack_server.functions_runtime", "MAX_CALL_DEPTH", MANY)),
    (limits.labels_have_a_limit, patched("toolpack_server.protocol.parameters", "MAX_LABELS_BYTES", MANY)),
    (limits.errors_are_short, patched("toolpack_server.base.errors", "MAX_SHOWN", MANY)),
    # JSON-RPC 2.0
    (jsonrpc.invalid_json_is_refused, codes(-32700, -32600)),
    (jsonrpc.invalid_json_is_refused, patched("toolpack_server.rpc.parsing", "loads", json.loads)),
    (jsonrpc.invalid_requests_are_refused, replies(lambda _p, _m, reply: reply | {"jsonrpc": "1.0"})),
    (jsonrpc.invalid_requests_are_refused, codes(-32600, -32603)),
    (jsonrpc.invalid_requests_are_refused, patched(rpc, "_request_problem", lambda request: None)),
    (jsonrpc.batch_members_are_answered, contents(invalid_members_left_out)),
    (jsonrpc.batch_members_are_answered, contents(batches_of_one_are_unpacked)),
    (jsonrpc.unknown_methods_and_parameters, codes(-32601, -32602)),
    (jsonrpc.unknown_methods_and_parameters, asks(unknown_parameters_are_ignored)),
    (jsonrpc.ids_are_returned, replies(lambda _p, _m, reply: reply | {"id": str(reply["id"])})),
    (jsonrpc.ids_are_returned, replies(lambda _p, _m, reply: reply | {"id": reply["id"] or None})),
    (jsonrpc.ids_are_returned, replies(ids_are_doubles)),
    (jsonrpc.ids_are_returned, NullIsNoId),
    (jsonrpc.notifications_get_no_answer, contents(notified_of_errors)),
    (
        jsonrpc.notifications_get_no_answer,
        contents(lambda _, content: content or b'{"jsonrpc":"2.0","id":null,"result":null}'),
    ),
    (jsonrpc.errors_have_protocol_codes, StatusesOfRest),
    (jsonrpc.errors_have_protocol_codes, codes('"similar"', '"other"')),
    (jsonrpc.other_content_is_refused, AnyContentType),
    (jsonrpc.the_methods_are_described, answers("rpc.discover", lambda _: {"methods": []})),
    (jsonrpc.functions_are_described, answers("list_functions", lambda result: result | {"result": []})),
    (jsonrpc.functions_are_described, without("format", "list_functions")),
    # MCP
    (mcp.a_client_is_greeted, answers("initialize", lambda result: result | {"protocolVersion": "2025-11-25"})),
    (mcp.a_client_is_greeted, NotificationsAreAnswered),
    (mcp.a_client_is_greeted, answers("ping", lambda _: None)),
    (mcp.tools_are_listed_and_called, answers("tools/list", lambda _: {"tools": []})),
    (mcp.tools_are_listed_and_called, tools(lambda tool: {**tool, "inputSchema": {"type": "object"}})),
    (mcp.tools_are_listed_and_called, tools(lambda tool: {**tool, "annotations": {}})),
    (mcp.tools_are_listed_and_called, tool_calls(double_encoded)),
    (mcp.a_tools_failure_is_an_error, tool_calls(lambda result: result | {"isError": False})),
    (
        mcp.a_tools_failure_is_an_error,
        patched("toolpack_server.features.protocols.mcp.protocol", "NESTED", {"nothing"}),
    ),
    (mcp.invalid_requests_get_mcp_errors, UnknownToolsAreResults),
    (mcp.invalid_requests_get_mcp_errors, codes(-32601, -32602)),
    (mcp.version_2026_is_supported, patched(headers.HeaderCheck, "_compare", lambda *_: None)),
    (mcp.version_2026_is_supported, answers("tools/list", lambda result: result | {"resultType": None})),
    (mcp.a_tool_is_called_once, without("_meta", "tools/call")),
    (mcp.a_tool_is_called_once, MessagesAreCallIds),
    (mcp.an_mcp_client_is_an_agent, tells_agents("tools/list", lambda session: session["session_id"])),
    (mcp.an_mcp_client_is_an_agent, tells_agents("initialize", lambda session: session["task"])),
    (mcp.an_mcp_client_is_an_agent, DeleteEnds),
    (mcp.pages_of_other_origins_are_refused, patched(endpoint, "cross_origin", lambda headers: [])),
]
