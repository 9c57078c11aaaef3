"""Sessions for tests of toolpacks, which run in the test's process without HTTP.

A session runs the server's own code with a store in memory, so a test gets the same atomicity, snapshots and errors as
an agent.
"""

import asyncio
import copy
import secrets
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from pydantic_core import to_jsonable_python

from toolpack_server.base.errors import CallError, RegistrationError
from toolpack_server.base.settings import Settings
from toolpack_server.execution.call import Outcome
from toolpack_server.execution.failure import CallFailure
from toolpack_server.execution.views import bind_volumes, reading, thawed
from toolpack_server.functions_runtime import FunctionCall
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.checks import initial_problem
from toolpack_server.packs.loading import extend_namespace
from toolpack_server.packs.toolpack import Toolpack, as_made
from toolpack_server.rpc.caller import Caller
from toolpack_server.sessions.calls import CallRequest
from toolpack_server.volumes.volume import put_in
from toolpack_server.wiring.service import Service

_SETTINGS = {"store": "memory:", "log_calls": "off", "verify_read_only": True}
_STOP_SECONDS = 10.0


def add_pack_dir(*folders: str | Path) -> None:
    """Make the modules in these folders importable as `toolpacks.<module>`, as `--pack-dir` does.

    Raises:
        RegistrationError: A folder doesn't exist.
    """
    problems: list[RegistrationError] = []
    extend_namespace([Path(folder) for folder in folders], problems)
    if problems:
        raise problems[0]


class _FunctionCaller:
    """Base class of `Session` and `Participant`: calls functions and submits the answer."""

    _server: "_Server"

    def run(self, function: str, /, **kwargs: Any) -> Any:
        """Run a function and return its result.

        Raises:
            Exception: The exception that the function raised, or the server's reason for not running it, such as
                `ValidationError`, `ToolNotFoundError` or `SnapshotError`.
        """
        envelope = self.call(function, **kwargs)
        if envelope["error"] is not None:
            raise self._server.call_error()
        return envelope["result"]

    def call(self, function: str, /, **kwargs: Any) -> dict[str, Any]:
        """Run a function and return `{"result": …, "error": …}`, the form that an agent gets.

        If the function fails, `error` is set, and nothing is raised.
        """
        envelope: dict[str, Any] = self._rpc("run_function", function=function, kwargs=_json(kwargs))
        return envelope

    def submit_answer(self, answer: str = "") -> None:
        """Submit the answer, which ends the agents' part of the session."""
        self._rpc("submit_answer", answer=answer)

    def _rpc(self, method: str, **params: Any) -> Any:
        raise NotImplementedError


class Participant(_FunctionCaller):
    """A participant of a session. It calls functions with its own rights. `Session.participant` returns it.

    Attributes:
        name: The participant's name; `agent` for the agent.
    """

    def __init__(self, server: "_Server", session_id: str, name: str) -> None:
        self._server = server
        self._caller = Caller(session_id=session_id, address=name)
        self.name = name

    def list_functions(self) -> list[dict[str, Any]]:
        """Return the functions that the participant can call."""
        functions: list[dict[str, Any]] = self._rpc("list_functions")["result"]
        return functions

    def get_task(self) -> dict[str, Any]:
        """Return the participant's task: the prompt and the limits."""
        task: dict[str, Any] = self._rpc("get_task")
        return task

    def say(self, text: str, to: str | None = None) -> None:
        """Send a message to another participant, or by default to all others."""
        self._rpc("say", text=text, to=to)

    def listen(self, after: int = -1) -> list[dict[str, Any]]:
        """Return the messages that the participant sent or received after the index `after`. Default: all messages."""
        messages: list[dict[str, Any]] = self._rpc("listen", after=after)["messages"]
        return messages

    def _rpc(self, method: str, **params: Any) -> Any:
        return self._server.rpc(method, self._caller, **params)


class Session(_FunctionCaller):
    """A session for a test, with its own server in the test's process.

    Use it as `with Session(toolpack) as session: session.run("get_balance")`. All values are JSON, just as agents get
    them. Only `environment` and `environments` return Python objects.

    Args:
        toolpacks: The toolpacks of the session: `Toolpack` objects, not names.
        options: The toolpacks' options, grouped by toolpack name, in the form that `create_session` accepts.
        task: A task of these toolpacks, `toolpack/name`. The session gets the options and rights that the task sets.
        participants: The participants and their rights, in the form that `create_session` accepts.

    Attributes:
        id: The session's id.

    Raises:
        RegistrationError: A toolpack is invalid.
        ReplyError: The options are invalid, or the task doesn't exist.
        TypeError: An argument isn't a toolpack, or options aren't grouped by toolpack.
    """

    def __init__(
        self,
        *toolpacks: Toolpack,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        task: str | None = None,
        participants: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        for pack in toolpacks:
            if not isinstance(pack, Toolpack):
                raise TypeError(f"{pack!r} isn't a Toolpack: pass the Toolpack object of the toolpack's module.")
        if not all(isinstance(values, Mapping) for values in (options or {}).values()):
            name = toolpacks[0].name if toolpacks else "bank"
            raise TypeError(f"options must be grouped by toolpack: pass options={{{name!r}: {{...}}}}.")
        self._server = _Server(toolpacks)
        self._opened_server = True
        try:
            parameters: dict[str, Any] = (
                {"toolpacks": [pack.name for pack in toolpacks]} if task is None else {"task": task}
            )
            if participants:
                parameters["participants"] = _json(participants)
            session = self._server.rpc("create_session", Caller(), options=_json(options or {}), **parameters)
        except BaseException:
            self._server.close()
            raise
        self.id: str = session["session_id"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def environment(self) -> Any:
        """A copy of the environment of the session's only toolpack. Changing the copy doesn't change the session.

        The toolpack `world`, which the server adds to a session with events, doesn't count.

        Raises:
            ValueError: The session has several toolpacks.
        """
        added = self._server.added
        environments = {name: value for name, value in self.environments.items() if name not in added}
        if len(environments) != 1:
            raise ValueError(f"The session has {len(environments)} toolpacks: use `environments[name]`.")
        return next(iter(environments.values()))

    @property
    def environments(self) -> dict[str, Any]:
        """Copies of the environments, by name of the toolpack. Changing a copy doesn't change the session."""
        return self._server.environments(self.id, self.version)

    @property
    def version(self) -> int:
        """The version of the session: the number of changes so far."""
        version: int = self._rpc("get_session")["version"]
        return version

    @property
    def trace(self) -> list[dict[str, Any]]:
        """All records of the session, in order."""
        records: list[dict[str, Any]] = []
        while page := self._rpc("get_trace", after=records[-1]["index"] if records else -1):
            records += page
        return records

    def diff(self, from_version: int = 0, to_version: int | None = None) -> list[dict[str, Any]]:
        """Return the JSON Patch between two versions. Default: all changes since the beginning."""
        patch: list[dict[str, Any]] = self._rpc("diff_environment", from_version=from_version, to_version=to_version)
        return patch

    def participant(self, name: str = "agent") -> Participant:
        """Return a participant. Calls made through this object are limited by its rights and recorded under its name.

        Raises:
            ValueError: No participant of the session has this name.
        """
        names = [*(self._rpc("get_session").get("participants") or ["agent"])]
        if name not in names:
            raise ValueError(f"The session has no participant {name!r}: choose from {', '.join(names)}.")
        return Participant(self._server, self.id, name)

    def evaluate(self, task: str | None = None, answer: str | None = None) -> dict[str, Any]:
        """Return the evaluator's verdict on the session.

        Args:
            task: The task, `toolpack/name`. Default: the session's own task.
            answer: The answer to evaluate. Default: the submitted answer.

        Raises:
            ReplyError: The session has no task, or the evaluator failed.
        """
        verdict: dict[str, Any] = self._rpc("evaluate_session", task=task, answer=answer)
        return verdict

    def fork(self, count: int = 1) -> list["Session"]:
        """Return new sessions that start with the current environment. Closing this session also closes its forks."""
        forks = []
        for forked in self._rpc("fork_session", count=count):
            fork = object.__new__(type(self))  # `__init__` would start another server
            fork._server, fork._opened_server, fork.id = self._server, False, forked["session_id"]
            forks.append(fork)
        return forks

    def reset(self, version: int = 0) -> None:
        """Restore the environment of an older version. This creates a new version."""
        self._rpc("reset_session", version=version)

    def close(self) -> None:
        """Close the session. For a session that isn't a fork, this also closes its forks."""
        if self._opened_server:
            self._server.close()
        elif not self._server.closed:
            self._rpc("close_session")

    def _rpc(self, method: str, **params: Any) -> Any:
        return self._server.rpc(method, Caller(), session_id=self.id, **params)


class _Server:
    """A server without HTTP. Its event loop runs in a separate thread."""

    def __init__(self, toolpacks: Sequence[Toolpack]) -> None:
        self.closed = False
        self.catalog = _catalog(tuple(toolpacks))
        # The toolpacks that the server adds, such as `world` for sessions with events.
        self.added = self.catalog.toolpacks.keys() - {pack.name for pack in toolpacks}
        self._failure: CallFailure | None = None  # the failure of the last call
        settings: dict[str, Any] = {**_SETTINGS}
        self._service = Service(
            Settings(**settings), self.catalog, key=secrets.token_bytes(32), on_call=self._store_failure
        )
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[started], name="testing", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        """Run the event loop until `close` is called. Set `started` when the service accepts requests."""

        async def serve() -> None:
            async with self._service.running():
                started.set()
                await self._stop.wait()

        self._loop.run_until_complete(serve())
        self._loop.close()

    def _store_failure(self, _request: CallRequest, outcome: Outcome) -> None:
        """Remember how the last call failed, for `call_error`. None means that it succeeded."""
        self._failure = outcome.failure

    def rpc(self, method: str, caller: Caller, **params: Any) -> Any:
        """Send a request and return its result.

        Raises:
            ReplyError: The server returned an error.
        """
        if self.closed:
            raise RuntimeError("The session is closed.")
        request = self._service.request(caller, method, params)
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()

    def environments(self, session_id: str, version: int) -> dict[str, Any]:
        """Return copies of a session's environments, by toolpack, including their databases and files."""
        codec, reader = self._service.codec, self._service.sessions.heavy_reader
        _, head = reader.find(session_id, None)
        snapshot = reader.snapshot(session_id, head, version)
        with reading(codec) as volumes:
            environments = thawed(codec, snapshot, volumes)
            for name, volume in bind_volumes(snapshot, volumes).items():
                toolpack, _, path = name.partition("/")
                of_instances = self.catalog.toolpacks[toolpack].holds_instances
                put_in(environments[toolpack], path, copy.deepcopy(volume), of_instances=of_instances)
        return as_made(environments)

    def call_error(self) -> BaseException:
        """Return the exception that the last call raised. The call must have failed."""
        failure = self._failure
        return CallError("The call failed.") if failure is None else failure.cause or CallError(failure.text)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_SECONDS)


@lru_cache(maxsize=64)
def _catalog(toolpacks: tuple[Toolpack, ...]) -> Catalog:
    """Return the catalog of toolpacks, after the checks that a server makes at its start.

    The result is cached, because tests open many sessions.

    Raises:
        RegistrationError: A toolpack is invalid.
    """
    companions = {companion.name: companion for pack in toolpacks for companion in pack.companions}
    catalog = Catalog({**companions, **{pack.name: pack for pack in toolpacks}})
    for pack in toolpacks:
        problem = initial_problem(pack, catalog)
        if problem is not None:
            raise problem
    return catalog


def _json(value: Any) -> Any:
    """Convert a Python value, such as a model or a date, to JSON. A `FunctionCall` becomes a nested call."""
    if isinstance(value, FunctionCall):
        return {"$call": {"function": value.function, "args": _json(value.args)}}
    if isinstance(value, Mapping):
        return {name: _json(item) for name, item in value.items()}
    return to_jsonable_python(value, by_alias=True)
