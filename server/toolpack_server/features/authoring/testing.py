"""Sessions for the tests of toolpacks: real ones, in the process of the test, without a server.

A session here is one of the server's own, with its store in memory. Only transport and tokens are left out,
so a test sees the atomicity, the snapshots and the refusals that agents will see.
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
from toolpack_server.execution.views import reading, thawed
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
        RegistrationError: There is no such folder.
    """
    problems: list[RegistrationError] = []
    extend_namespace([Path(folder) for folder in folders], problems)
    if problems:
        raise problems[0]


class _Calling:
    """Whoever calls functions of a session."""

    _server: "_Server"

    def run(self, function: str, /, **kwargs: Any) -> Any:
        """Run a function and get its result.

        Raises:
            Exception: What the function raised, or what an agent would be told instead: `ValidationError`,
                `ToolNotFoundError`, `SnapshotError` and so on.
        """
        envelope = self.call(function, **kwargs)
        if envelope["error"] is not None:
            raise self._server.failed()
        return envelope["result"]

    def call(self, function: str, /, **kwargs: Any) -> dict[str, Any]:
        """Run a function and get the envelope, `{"result": …, "error": …}`, that an agent would get."""
        found: dict[str, Any] = self._rpc("run_function", function=function, kwargs=_json(kwargs))
        return found

    def submit_answer(self, answer: str = "") -> None:
        """Submit the session's answer, which ends what agents can do."""
        self._rpc("submit_answer", answer=answer)

    def _rpc(self, method: str, **params: Any) -> Any:
        raise NotImplementedError


class Participant(_Calling):
    """What somebody can do at the address that a session has for them; `Session.participant` gets it.

    Attributes:
        name: Who it is: `agent`, or another participant.
    """

    def __init__(self, server: "_Server", session_id: str, name: str) -> None:
        self._server = server
        self._caller = Caller(session_id=session_id, address=name)
        self.name = name

    def list_functions(self) -> list[dict[str, Any]]:
        """Get the functions that they have."""
        found: list[dict[str, Any]] = self._rpc("list_functions")["result"]
        return found

    def get_task(self) -> dict[str, Any]:
        """Get what they are asked to do."""
        found: dict[str, Any] = self._rpc("get_task")
        return found

    def say(self, text: str, to: str | None = None) -> None:
        """Say something to another participant; by default to all."""
        self._rpc("say", text=text, to=to)

    def listen(self, after: int = -1) -> list[dict[str, Any]]:
        """Get what they have said and were told after the message with this index; by default all."""
        heard: list[dict[str, Any]] = self._rpc("listen", after=after)["messages"]
        return heard

    def _rpc(self, method: str, **params: Any) -> Any:
        return self._server.rpc(method, self._caller, **params)


class Session(_Calling):
    """A session of its own server, for a test.

    `with Session(toolpack) as session: session.run("get_balance")`. All values are JSON, as agents get them; only
    `environment` gives Python objects.

    Args:
        toolpacks: Those whose functions the session has: the objects, not their names.
        options: Their options, by the name of the toolpack, as for `create_session`.
        task: A task of one of them, `toolpack/name`: the session begins as it says.
        participants: Who takes part, and what each may do, as for `create_session`.

    Attributes:
        id: The session's id.

    Raises:
        RegistrationError: A toolpack can't be used.
        ReplyError: The options don't fit, or there is no such task.
        TypeError: Something else than a toolpack was passed.
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
                raise TypeError(f"{pack!r} isn't a Toolpack: pass the object that the toolpack's module has made.")
        self._server = _Server(toolpacks)
        self._opened_server = True
        try:
            chosen: dict[str, Any] = (
                {"toolpacks": [pack.name for pack in toolpacks]} if task is None else {"task": task}
            )
            if participants:
                chosen["participants"] = _json(participants)
            created = self._server.rpc("create_session", Caller(), options=_json(options or {}), **chosen)
        except BaseException:
            self._server.close()
            raise
        self.id: str = created["session_id"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def environment(self) -> Any:
        """The environment of the only toolpack: a copy, which the test may change.

        Raises:
            ValueError: There are several toolpacks.
        """
        found = self.environments
        if len(found) != 1:
            raise ValueError(f"The session has {len(found)} toolpacks: use `environments[name]`.")
        return next(iter(found.values()))

    @property
    def environments(self) -> dict[str, Any]:
        """The environment of each toolpack, by name: copies, which the test may change."""
        return self._server.environments(self.id, self.version)

    @property
    def version(self) -> int:
        """The number of changes that the session has gone through."""
        version: int = self._rpc("get_session")["version"]
        return version

    @property
    def trace(self) -> list[dict[str, Any]]:
        """All records of the session."""
        records: list[dict[str, Any]] = []
        while more := self._rpc("get_trace", after=records[-1]["index"] if records else -1):
            records += more
        return records

    def diff(self, from_version: int = 0, to_version: int | None = None) -> list[dict[str, Any]]:
        """Get the JSON Patch between two versions; by default all changes."""
        patch: list[dict[str, Any]] = self._rpc("diff_environment", from_version=from_version, to_version=to_version)
        return patch

    def participant(self, name: str = "agent") -> Participant:
        """Get somebody's address: what they do there has the rights that they have, and is recorded as theirs.

        Raises:
            ValueError: The session has no such participant.
        """
        known = [*(self._rpc("get_session").get("participants") or ["agent"])]
        if name not in known:
            raise ValueError(f"The session has no participant {name!r}: choose from {', '.join(known)}.")
        return Participant(self._server, self.id, name)

    def evaluate(self, task: str | None = None, answer: str | None = None) -> dict[str, Any]:
        """Get the verdict on the session: by its own task or another one, with its own answer or another one.

        Raises:
            ReplyError: It has no task, or the evaluator failed.
        """
        verdict: dict[str, Any] = self._rpc("evaluate_session", task=task, answer=answer)
        return verdict

    def fork(self, count: int = 1) -> list["Session"]:
        """Get new sessions that start with the present environment; they end with this session, or before."""
        forks = []
        for forked in self._rpc("fork_session", count=count):
            fork = object.__new__(type(self))
            fork._server, fork._opened_server, fork.id = self._server, False, forked["session_id"]
            forks.append(fork)
        return forks

    def reset(self, version: int = 0) -> None:
        """Go back to the environment of an older version, which is then a new version."""
        self._rpc("reset_session", version=version)

    def close(self) -> None:
        """End the session."""
        if self._opened_server:
            self._server.close()
        elif not self._server.closed:
            self._rpc("close_session")

    def _rpc(self, method: str, **params: Any) -> Any:
        return self._server.rpc(method, Caller(), session_id=self.id, **params)


class _Server:
    """A server without HTTP, whose event loop runs in a thread of its own."""

    def __init__(self, toolpacks: Sequence[Toolpack]) -> None:
        self.closed = False
        self.catalog = _catalog(tuple(toolpacks))
        self._failure: CallFailure | None = None  # of the last call
        settings: dict[str, Any] = {**_SETTINGS}
        self._service = Service(
            Settings(**settings), self.catalog, key=secrets.token_bytes(32), on_call=self._note_failure
        )
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[started], name="testing", daemon=True)
        self._thread.start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        async def serve() -> None:
            async with self._service.running():
                started.set()
                await self._stop.wait()

        self._loop.run_until_complete(serve())
        self._loop.close()

    def _note_failure(self, _request: CallRequest, outcome: Outcome) -> None:
        self._failure = outcome.failure

    def rpc(self, method: str, caller: Caller, **params: Any) -> Any:
        """Send a request and get its result.

        Raises:
            ReplyError: It was refused.
        """
        if self.closed:
            raise RuntimeError("The session is closed.")
        request = self._service.request(caller, method, params)
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()

    def environments(self, session_id: str, version: int) -> dict[str, Any]:
        """Get a session's environments, by toolpack; the databases and files in them are copies, too."""
        codec, reader = self._service.codec, self._service.sessions.heavy_reader
        _, head = reader.find(session_id, None)
        snapshot = reader.snapshot(session_id, head, version)
        with reading(codec) as volumes:
            found = thawed(codec, snapshot, volumes)
            for name, volume in volumes.bound.items():
                toolpack, _, path = name.partition("/")
                of_instances = self.catalog.toolpacks[toolpack].holds_instances
                put_in(found[toolpack], path, copy.deepcopy(volume), of_instances=of_instances)
        return as_made(found)

    def failed(self) -> BaseException:
        failure = self._failure
        return CallError("The call has failed.") if failure is None else failure.cause or CallError(failure.text)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_SECONDS)


@lru_cache(maxsize=64)
def _catalog(toolpacks: tuple[Toolpack, ...]) -> Catalog:
    """Load toolpacks, as a server does; tests open many sessions of one toolpack."""
    catalog = Catalog({pack.name: pack for pack in toolpacks})
    for pack in toolpacks:
        problem = initial_problem(pack, catalog)
        if problem is not None:
            raise problem
    return catalog


def _json(value: Any) -> Any:
    """Get JSON for values of Python: models, dates, and `FunctionCall` for a nested call."""
    if isinstance(value, FunctionCall):
        return {"$call": {"function": value.function, "args": _json(value.args)}}
    if isinstance(value, Mapping):
        return {name: _json(item) for name, item in value.items()}
    return to_jsonable_python(value, by_alias=True)
