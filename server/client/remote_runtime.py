"""AgentDojo's `FunctionsRuntime`, with the functions running on a server.

`TaskSuite.run_task_with_pipeline(..., runtime_class=RemoteRuntime.bind(client, "agentdojo-workspace"))` runs unchanged:
AgentDojo's own code makes the local environment, hands it to every call, and judges it at the end.

The rule: before a call the local environment equals the session's, and after it again. Nothing is tolerated but the
order inside sets, which no copy of a set keeps: types, values, sharing, private attributes and `model_fields_set`
must all agree, else the call is refused with where they don't.
"""

import ast
import atexit
import base64
import builtins
import contextlib
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Self

from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime, ToolNotFoundError
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from server import errors
from server.client import Client
from server.errors import EnvironmentDiffersError, NoReplyError, RemoteFunctionError, ReplyError
from server.functions_runtime import error_text
from server.jsonio.revive import revive
from server.snapshots.classes import ClassTable, fingerprint
from server.snapshots.graph import difference
from server.snapshots.pickling import freeze, thaw
from server.snapshots.seal import FORMAT

_MODEL_STATE = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


class RemoteRuntime(FunctionsRuntime):  # type: ignore[misc] # agentdojo ships no types
    """Runs functions in a session of its own, which it creates at its first call.

    Make a class with `bind`, and pass that to AgentDojo. `functions` are what the agent is offered: a function that
    isn't among them is unavailable, whatever the server has. An environment can't be followed if it refers to itself.
    `close` closes the session; without it, that happens when the next is created or the client is closed.
    """

    client: ClassVar[Client]
    toolpack: ClassVar[str]
    sessions: ClassVar["_Sessions"]
    state_types: ClassVar[tuple[type, ...]]

    @classmethod
    def bind(
        cls,
        client: Client,
        toolpack: str,
        options: Mapping[str, Any] | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        state_types: Iterable[type] = (),
    ) -> type[Self]:
        """Make a runtime class for a server and one of its toolpacks.

        Args:
            client: The client of the server.
            toolpack: The toolpack's name.
            options: Its options: those that make the same environment as the suite does here.
            labels: Labels of the sessions.
            ttl_seconds: How long a session lives after its last call, should nobody close it.
            state_types: The toolpack's own `state_types`, if it has any.
        """
        wanted = {"options": {toolpack: options} if options else None, "labels": labels, "ttl_seconds": ttl_seconds}
        sessions = _Sessions(client, {"toolpacks": [toolpack]} | wanted)
        bound = {"client": client, "toolpack": toolpack, "sessions": sessions, "state_types": tuple(state_types)}
        return type(f"{cls.__name__}[{toolpack}]", (cls,), bound)

    def __init__(self, functions: Sequence[Any] = ()) -> None:
        if not hasattr(self, "client"):
            raise TypeError("RemoteRuntime needs a server: make a class with RemoteRuntime.bind(client, toolpack).")
        super().__init__(functions)
        self.session_id: str | None = None
        self._agreed: bytes | None = None  # the local environment as it was when it last equalled the session's

    def run_function(
        self, env: Any, function: str, kwargs: Mapping[str, Any], raise_on_error: bool = False
    ) -> tuple[Any, str | None]:
        """Run a function on the server and let `env` follow; see AgentDojo's `FunctionsRuntime`.

        Raises:
            EnvironmentDiffersError: `env` isn't what the session has, so the call would mean something else there.
            ClientError: The server can't be reached, or refused the request.
        """
        error = self._unavailable(function, kwargs)
        result: Any = ""
        if error is None:
            if env is None and self.functions[function].dependencies:
                raise ValueError(f"Function {function} has dependencies but no environment was provided.")
            session_id = self._session(env)
            arguments = {name: _argument(value) for name, value in kwargs.items()}
            agreed, self._agreed = self._agreed, None  # should anything be lost on the way, look again
            envelope = self.client.run_function(session_id, function, arguments)
            result, error = envelope["result"], envelope["error"]
            if error is None and env is not None:
                self._follow(session_id, env)
            else:
                self._agreed = agreed
        if error is not None:
            if raise_on_error:
                raise self._exception(function, kwargs, error)
            return "", error
        return_type = self.functions[function].return_type
        return result if return_type is None else revive(result, return_type), None

    def close(self) -> None:
        """Close the session, if there is one; a next call makes a new one."""
        if self.session_id is not None:
            self.sessions.close(self.session_id)
        self.session_id = self._agreed = None

    def _unavailable(self, function: str, kwargs: Mapping[str, Any]) -> str | None:
        if function not in self.functions:
            return f"ToolNotFoundError: The requested function `{function}` is not available."
        inner = (self._unavailable(v.function, v.args) for v in kwargs.values() if isinstance(v, FunctionCall))
        return next((problem for problem in inner if problem), None)

    def _session(self, env: BaseModel | None) -> str:
        """Get the session, made at the first call, after making sure that it has what `env` has."""
        if self.session_id is None:
            self.session_id = self.sessions.create(self)
        if env is not None:
            self._check(self.session_id, env)
        return self.session_id

    def _check(self, session_id: str, env: BaseModel) -> None:
        frozen = freeze(env, self._classes(env))
        # An unchanged object freezes to the same bytes; other bytes may still mean the same, so only then compare.
        if frozen == self._agreed:
            return
        found = difference(self._exported(session_id, env), env)
        if found:
            raise EnvironmentDiffersError(
                f"The local environment isn't the one that the session has: {found} (there, then here). "
                f"Give `bind` the options that match it, and let nothing but the runtime change it."
            )
        self._agreed = frozen

    def _follow(self, session_id: str, env: BaseModel) -> None:
        """Move the session's state into the local object, so that whoever holds that object sees it."""
        exported = self._exported(session_id, env)
        for part in _MODEL_STATE:
            object.__setattr__(env, part, getattr(exported, part))
        self._agreed = freeze(env, self._classes(env))

    def _exported(self, session_id: str, env: BaseModel) -> Any:
        export = self.client.export_session(session_id)
        theirs = export["format"], export["fingerprints"][self.toolpack]
        if theirs != (FORMAT, fingerprint([type(env)], self.state_types)):
            raise EnvironmentDiffersError(
                f"The classes of {type(env).__name__} here aren't those of toolpack {self.toolpack!r} on the server: "
                f"install the same versions of the packages that define them, and of toolpack-server."
            )
        return thaw(base64.b64decode(export["snapshot"]), self._classes(env))[self.toolpack]

    def _classes(self, env: BaseModel) -> ClassTable:
        return _class_table(type(env), self.state_types)

    def _exception(self, function: str, kwargs: Mapping[str, Any], error: str) -> Exception:
        """Get the exception that the error tells of: the real one where it can be made, else one of its name."""
        kind, _, message = error.partition(": ")
        if kind == ToolNotFoundError.__name__:
            return ToolNotFoundError(message)  # type: ignore[no-any-return]
        if kind == ValidationError.__name__ and function in self.functions:
            try:
                self.functions[function].parameters.model_validate(kwargs)
            except ValidationError as invalid:
                if error_text(invalid) == error:
                    return invalid
        known = getattr(builtins, kind, None) or getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, Exception):
            for argument in _possible_arguments(message):
                with contextlib.suppress(Exception):
                    made = known(argument)
                    if str(made) == message:
                        return made
        remote: Exception = type(kind, (RemoteFunctionError,), {})(message)
        return remote


def _possible_arguments(message: str) -> list[Any]:
    """Say what an exception may have been made with: KeyError's text is the literal of its argument."""
    arguments: list[Any] = [message]
    with contextlib.suppress(ValueError, SyntaxError):
        arguments.append(ast.literal_eval(message))
    return arguments


def _argument(value: Any) -> Any:
    if isinstance(value, FunctionCall):
        inner = {name: _argument(argument) for name, argument in value.args.items()}
        return {"$call": {"function": value.function, "args": inner}}
    return to_jsonable_python(value)


@lru_cache
def _class_table(environment: type[BaseModel], state_types: tuple[type, ...]) -> ClassTable:
    return ClassTable([environment], state_types)


class _Sessions:
    """The sessions of one bound class, so that none outlives its runtime for long.

    A runtime may go in the garbage collector, in any thread and under any lock: nothing is sent from there. What it
    leaves behind is closed when the next session is created, the client is closed, or the process ends.
    """

    def __init__(self, client: Client, wanted: Mapping[str, Any]) -> None:
        self._client = client
        self._wanted = wanted
        self._open: set[str] = set()
        self._left: deque[str] = deque()
        client.before_close.append(self.close_all)
        atexit.register(self.close_all)

    def create(self, runtime: RemoteRuntime) -> str:
        """Create a session for a runtime."""
        while self._left:
            self.close(self._left.popleft())
        session_id = self._client.create_session(**self._wanted)["session_id"]
        self._open.add(session_id)
        weakref.finalize(runtime, self._left.append, session_id).atexit = False
        return session_id

    def close(self, session_id: str) -> bool:
        """Close a session, unless that is done, and say if the server could be reached."""
        if session_id in self._open:
            self._open.discard(session_id)
            try:
                self._client.close_session(session_id)
            except ReplyError:
                pass  # it has ended by itself
            except (NoReplyError, RuntimeError):
                return False  # the server or the client is gone: the session ends with its time to live
        return True

    def close_all(self) -> None:
        """Close all that are open; after the first that can't be, the others are left to end by themselves."""
        while self._open and self.close(next(iter(self._open))):
            pass
