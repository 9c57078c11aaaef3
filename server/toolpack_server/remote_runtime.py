"""Replacement for AgentDojo's `FunctionsRuntime` that runs the functions on a server.

AgentDojo's own code creates the local environment, passes it to every call, and evaluates it at the end. That code runs
unchanged: `TaskSuite.run_task_with_pipeline(..., runtime_class=RemoteRuntime.bind(client, "agentdojo-workspace"))`.

The local environment equals the session's before and after each call, in types, values, shared references, private
attributes and `model_fields_set`. Only the order inside sets can differ. A call with an environment that differs is
refused, and the error names the location of the difference.
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

try:
    from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime, ToolNotFoundError
except ImportError as error:
    if (error.name or "").partition(".")[0] != "agentdojo":
        raise
    needs = "RemoteRuntime needs AgentDojo: pip install 'toolpack-server[agentdojo,client]'."
    raise ImportError(needs, name="agentdojo") from None
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from toolpack_server.base import errors
from toolpack_server.base.errors import EnvironmentDiffersError, NoReplyError, RemoteFunctionError, ReplyError
from toolpack_server.client import Client
from toolpack_server.functions_runtime import error_text
from toolpack_server.revive import revive
from toolpack_server.snapshots.classes import ClassTable, fingerprint
from toolpack_server.snapshots.comparison import difference
from toolpack_server.snapshots.pickling import freeze, thaw
from toolpack_server.snapshots.seal import FORMAT

_MODEL_STATE = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


class RemoteRuntime(FunctionsRuntime):  # type: ignore[misc] # agentdojo ships no types
    """Runs functions in its own session, which it creates at the first call.

    Create a class with `bind`, and pass it to AgentDojo. The agent can call only the functions in `functions`, even if
    the toolpack has more. The environment object must not contain references to itself. `close` closes the session. If
    you don't call `close`, the session is closed when the next session is created or the client is closed.
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
        """Create a runtime class for a server and one of its toolpacks.

        Args:
            options: The toolpack's options. They must build the same environment as the local suite.
            labels: Labels of the sessions.
            ttl_seconds: Time to live of a session after its last call, in seconds.
            state_types: The toolpack's `state_types`, if it has any.
        """
        params = {"options": {toolpack: options} if options else None, "labels": labels, "ttl_seconds": ttl_seconds}
        sessions = _Sessions(client, {"toolpacks": [toolpack]} | params)
        members = {"client": client, "toolpack": toolpack, "sessions": sessions, "state_types": tuple(state_types)}
        return type(f"{cls.__name__}[{toolpack}]", (cls,), members)

    def __init__(self, functions: Sequence[Any] = ()) -> None:
        if not hasattr(self, "client"):
            raise TypeError("RemoteRuntime needs a server: create a class with RemoteRuntime.bind(client, toolpack).")
        super().__init__(functions)
        self.session_id: str | None = None
        self._in_sync: bytes | None = None  # snapshot of the local environment from when it last equalled the session's

    def run_function(
        self, env: Any, function: str, kwargs: Mapping[str, Any], raise_on_error: bool = False
    ) -> tuple[Any, str | None]:
        """Run a function on the server and update `env`; see AgentDojo's `FunctionsRuntime`.

        Raises:
            EnvironmentDiffersError: `env` differs from the session's environment.
            ClientError: The server can't be reached, or refused the request.
        """
        error = self._unavailable(function, kwargs)
        result: Any = ""
        if error is None:
            if env is None and self.functions[function].dependencies:
                raise ValueError(f"Function {function} has dependencies but no environment was provided.")
            session_id = self._session(env)
            arguments = {name: _argument(value) for name, value in kwargs.items()}
            in_sync, self._in_sync = self._in_sync, None  # if the request fails, the next call compares again
            envelope = self.client.run_function(session_id, function, arguments)
            result, error = envelope["result"], envelope["error"]
            if error is None and env is not None:
                self._update(session_id, env)
            else:
                self._in_sync = in_sync
        if error is not None:
            if raise_on_error:
                raise self._exception(function, kwargs, error)
            return "", error
        return_type = self.functions[function].return_type
        return result if return_type is None else revive(result, return_type), None

    def close(self) -> None:
        """Close the session, if there is one. The next call creates a new one."""
        if self.session_id is not None:
            self.sessions.close(self.session_id)
        self.session_id = self._in_sync = None

    def _unavailable(self, function: str, kwargs: Mapping[str, Any]) -> str | None:
        """Return the error if a call, or a call among its arguments, names a function that the agent can't call.

        Return None if all functions are available.
        """
        if function not in self.functions:
            return f"ToolNotFoundError: The requested function `{function}` is not available."
        inner = (self._unavailable(v.function, v.args) for v in kwargs.values() if isinstance(v, FunctionCall))
        return next((problem for problem in inner if problem), None)

    def _session(self, env: BaseModel | None) -> str:
        """Check that the session's environment equals `env`, and return its id. The first call creates the session."""
        if self.session_id is None:
            self.session_id = self.sessions.create(self)
        if env is not None:
            self._check(self.session_id, env)
        return self.session_id

    def _check(self, session_id: str, env: BaseModel) -> None:
        """Check that the local environment equals the session's.

        Raises:
            EnvironmentDiffersError: The two environments differ.
        """
        frozen = freeze(env, self._classes(env))
        # Equal bytes mean equal environments. But equal environments can have different bytes, so then compare objects.
        if frozen == self._in_sync:
            return
        first_difference = difference(self._exported(session_id, env), env)
        if first_difference:
            raise EnvironmentDiffersError(
                f"The local environment differs from the session's: {first_difference} (there, then here). "
                f"Pass `bind` the options that build it, and let only the runtime change it."
            )
        self._in_sync = frozen

    def _update(self, session_id: str, env: BaseModel) -> None:
        """Copy the session's state into the local object. It must stay the same object, because callers refer to it."""
        exported = self._exported(session_id, env)
        for attribute in _MODEL_STATE:
            object.__setattr__(env, attribute, getattr(exported, attribute))
        self._in_sync = freeze(env, self._classes(env))

    def _exported(self, session_id: str, env: BaseModel) -> Any:
        """Return the session's environment as an object.

        Raises:
            EnvironmentDiffersError: Its classes here differ from its classes on the server, so its bytes can't be read.
        """
        export = self.client.get_environment(session_id, format="snapshot")
        remote = export["format"], export["fingerprints"][self.toolpack]
        if remote != (FORMAT, fingerprint([type(env)], self.state_types)):
            raise EnvironmentDiffersError(
                f"The classes of {type(env).__name__} here differ from those of toolpack {self.toolpack!r} there: "
                f"install the same versions of the packages that define them, and of toolpack-server."
            )
        return thaw(base64.b64decode(export["snapshot"]), self._classes(env))[self.toolpack]

    def _classes(self, env: BaseModel) -> ClassTable:
        return _class_table(type(env), self.state_types)

    def _exception(self, function: str, kwargs: Mapping[str, Any], error: str) -> Exception:
        """Return the exception for an error, of its original class if possible, otherwise of a class with its name."""
        kind, _, message = error.partition(": ")
        if kind == ToolNotFoundError.__name__:
            return ToolNotFoundError(message)  # type: ignore[no-any-return]
        if kind == ValidationError.__name__ and function in self.functions:
            try:
                self.functions[function].parameters.model_validate(kwargs)
            except ValidationError as invalid:
                if error_text(invalid) == error:
                    return invalid
        known_class = getattr(builtins, kind, None) or getattr(errors, kind, None)
        if isinstance(known_class, type) and issubclass(known_class, Exception):
            for argument in _possible_arguments(message):
                with contextlib.suppress(Exception):
                    exception = known_class(argument)
                    if str(exception) == message:
                        return exception
        remote: Exception = type(kind, (RemoteFunctionError,), {})(message)
        return remote


def _possible_arguments(message: str) -> list[Any]:
    """Return possible arguments of an exception: the message, or the value whose repr the message is (KeyError)."""
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
    """The sessions of one bound class. It closes the sessions whose runtime was deleted.

    The garbage collector can delete a runtime in any thread and under any lock, so no request is sent at that moment.
    The session is closed later: when the next session is created, the client is closed, or the process exits.
    """

    def __init__(self, client: Client, arguments: Mapping[str, Any]) -> None:
        self._client = client
        self._arguments = arguments
        self._open: set[str] = set()
        self._abandoned: deque[str] = deque()
        client.before_close.append(self.close_all)
        atexit.register(self.close_all)

    def create(self, runtime: RemoteRuntime) -> str:
        """Create a session for a runtime and return its id. First close the sessions of deleted runtimes."""
        while self._abandoned:
            self.close(self._abandoned.popleft())
        session_id = self._client.create_session(**self._arguments)["session_id"]
        self._open.add(session_id)
        # At exit `close_all` closes the session.
        weakref.finalize(runtime, self._abandoned.append, session_id).atexit = False
        return session_id

    def close(self, session_id: str) -> bool:
        """Close a session if it is open, and return whether the server could be reached."""
        if session_id in self._open:
            self._open.discard(session_id)
            try:
                self._client.close_session(session_id)
            except ReplyError:
                pass  # it has expired
            except (NoReplyError, RuntimeError):
                return False  # the server or the client is gone, so the session will expire
        return True

    def close_all(self) -> None:
        """Close all open sessions. If the server can't be reached, the rest expire by themselves."""
        while self._open and self.close(next(iter(self._open))):
            pass
