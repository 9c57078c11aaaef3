"""Environments for trainers: one rollout of a task at a time, with the task's functions as methods.

Each rollout is a new session, so it starts from a clean state. If the host or the server fails, the rollout is invalid.
Its reward is then None, never 0, so that trainers skip the rollout.

Trainers such as TRL (`environment_factory`) offer an environment's methods to the model as tools. So each task gets its
own class, with the task's functions as methods. Other methods of the class, such as `close`, are hidden from trainers
by `_NoTool`.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import UnionType
from typing import Any, Literal, Self

from toolpack_server.base.errors import ClientError, NoReplyError, RemoteFunctionError, ReplyError
from toolpack_server.client.clients import AgentClient, Client
from toolpack_server.client.exchange import is_unusable
from toolpack_server.client.methods import Session
from toolpack_server.features.evaluation.tasks.results import Verdict
from toolpack_server.protocol.results import Json

LABEL = {"environment": "trainer"}  # the label that marks the sessions of all environments
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_PROBE_SECONDS = 60.0  # TTL of a session that is created only to list its functions
_ALREADY_ANSWERED = -32014  # error code for an answer after another answer


class _NoTool:
    """Decorator that hides a method from trainers, which search the class for plain functions.

    An attribute access on the class returns this object instead of a function. An access on an instance returns the
    bound method, as usual.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self._function.__get__(instance, owner)


class TrainingEnvironment:
    """One task, played in one session after another.

    The task's functions become methods with signatures and docstrings, such as `environment.get_balance()`. A method
    returns the text for the model: a string result unchanged, any other result as JSON. If the function fails, the
    method raises `RemoteFunctionError`, because trainers show the model the exceptions that its tools raise. If a
    function is named like a method of this class, such as `close`, it becomes the method `close_`. The model still sees
    the original name.

    Args:
        url: The server's base URL.
        task: The task, as `toolpack/name`.
        token: A bearer token for `/rpc`, if the server requires one. Neither models nor functions see it.
        labels: Labels of the sessions, in addition to `environment=trainer`. If your program dies, you can find its
            sessions by these labels and close them with `close_session`.
        keep: Whether to keep the sessions until they expire, and to record the verdict of `get_reward`. Set it to see
            the rollouts on the console's page of runs.
        seed: The seed of the sessions. With a seed, all rollouts get the same random numbers and times.
        create: Further parameters of `create_session`, such as `perturbations` and `ttl_seconds`.

    Attributes:
        functions: The task's functions in the format of chat completions.
        session: The session of the rollout. None before `reset` and after `close`.
        verdict: The verdict on the rollout. None before `get_reward`.
        problem: The reason why the rollout is invalid. None: the rollout is valid so far.

    Raises:
        ClientError: The server doesn't answer, or the task doesn't exist.
    """

    functions: tuple[dict[str, Any], ...] = ()
    session: Session | None = None
    verdict: Verdict | None = None
    problem: str | None = None

    def __new__(cls, url: str, task: str, *, token: str | None = None, **_more: Any) -> Self:
        """Create an instance of a subclass whose methods are the task's functions.

        If `cls` already is this subclass, as when a fork's environment is created, use it.
        """
        kind: Any = cls if "_of_task" in vars(cls) else _with_functions(cls, url, task, token)  # type: ignore[arg-type] # a class is hashable
        environment: Self = object.__new__(kind)
        return environment

    def __init__(
        self,
        url: str,
        task: str,
        *,
        token: str | None = None,
        labels: Mapping[str, str] | None = None,
        keep: bool = False,
        seed: int | str | None = None,
        **create: Any,
    ) -> None:
        if seed is not None:
            create["seed"] = str(seed)
        self._arguments: dict[str, Any] = {"url": url, "task": task, "token": token, "labels": labels, "keep": keep}
        self._arguments |= create
        self._task = task
        self._client = Client(url, token=token)
        self._labels = {**LABEL, **(labels or {})}
        self._keep = keep
        self._create = create
        self._agent: AgentClient | None = None
        self._is_lost = False

    def reset(self, **_row: Any) -> str:
        """Close the last rollout, begin the next rollout, and return its prompt.

        Trainers pass the columns of their data row as keyword arguments, which are ignored. If the server can't be
        reached, the rollout is invalid, and the prompt is "".

        Raises:
            ReplyError: The server refused the parameters of `create_session`.
        """
        self._end()
        self.verdict = self.problem = None
        try:
            self._begin(self._client.create_session(task=self._task, labels=self._labels, **self._create))
            prompt = self._current_agent().get_task()["prompt"]
        except ClientError as error:
            if _is_wrong(error):
                raise
            self._invalidate(error)
            return ""
        if prompt is None or isinstance(prompt, str):
            return prompt or ""
        return "\n\n".join(message["content"] for message in prompt)

    def get_reward(self) -> float | None:
        """Return the rollout's reward, or None if the rollout is invalid, for example after a failure of the server."""
        if self.problem is None and self.session is None:
            self.problem = "There is no rollout: call reset first."
        if self.problem is None and self.session is not None:
            session_id = self.session["session_id"]
            try:
                verdict = self._client.evaluate_session(session_id, record=self._keep, raise_on_error=False)
            except ClientError as error:
                self._invalidate(error)
            else:
                self.verdict = verdict
                if not verdict["valid"]:
                    self.problem = (verdict["failure"] or {"message": "invalid"})["message"]
        return None if self.problem is not None or self.verdict is None else self.verdict["reward"]

    @_NoTool
    def call(self, function: str, /, **kwargs: Json) -> Json:
        """Call a function by its name and return its result.

        Raises:
            RemoteFunctionError: The function failed, or the call is wrong. The message is the error for the model.
            RuntimeError: No rollout has begun, or the server can't be reached, so that the rollout is invalid.
        """
        envelope = self._send(lambda agent: agent.run_function(function, kwargs))
        if envelope["error"] is not None:
            raise RemoteFunctionError(envelope["error"])
        return envelope["result"]

    @_NoTool
    def submit_answer(self, answer: str = "") -> None:
        """Submit the agent's answer. After the answer, the agent can't call functions any more.

        Raises:
            RemoteFunctionError: The answer is too long, or an answer was submitted before.
            RuntimeError: No rollout has begun, or the server can't be reached, so that the rollout is invalid.
        """
        self._send(lambda agent: agent.submit_answer(answer))

    @_NoTool
    @contextmanager
    def group(self, count: int) -> Iterator[list[Self]]:
        """Yield environments with rollouts from the same start, which are forks of one session.

        At the end of the `with` block, all environments are closed. Each fork gets its number as the label `rollout`.
        The parent session is closed at once. It gets none of your labels, so it doesn't count as a rollout of your run.

        Raises:
            ClientError: The rollouts can't begin.
        """
        members: list[Self] = []
        try:
            start = self._client.create_session(task=self._task, labels=LABEL, **self._create)["session_id"]
            try:
                members.extend(self._fork(start, rollout=str(number)) for number in range(count))
            finally:
                with suppress(ClientError):
                    self._client.close_session(start)
            yield members
        finally:
            for member in members:
                member.close()

    @_NoTool
    def fork(self) -> Self:
        """Fork this rollout at its present state. Return the fork's environment, which you must also close.

        Raises:
            ClientError: The session can't be forked.
            RuntimeError: No rollout has begun.
        """
        if self.session is None:
            raise RuntimeError("there is no rollout: call reset first")
        return self._fork(self.session["session_id"])

    @_NoTool
    def close(self) -> None:
        """Close the connections, and the rollout's session unless `keep` is set. A second call has no effect."""
        self._end()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _begin(self, session: Session) -> None:
        self.session, self._agent = session, self._client.agent(session)

    def _fork(self, session_id: str, **labels: str) -> Self:
        (session,) = self._client.fork_session(session_id, labels={**self._labels, **labels})
        environment = type(self)(**self._arguments)
        environment._begin(session)  # noqa: SLF001 - same class
        return environment

    def _current_agent(self) -> AgentClient:
        if self._agent is None:
            raise RuntimeError("there is no rollout: call reset first")
        return self._agent

    def _send(self, request: Callable[[AgentClient], Any]) -> Any:
        """Send a request as the agent. If the server doesn't respond, mark the rollout as invalid.

        Raises:
            RemoteFunctionError: The server refused the request because the agent made a mistake.
            RuntimeError: The rollout is invalid, or none has begun.
        """
        if self.problem is not None:
            raise RuntimeError(f"the rollout is invalid: {self.problem}")
        try:
            return request(self._current_agent())
        except ClientError as error:
            if _is_wrong(error):  # the agent's own mistake, so the agent gets the error
                raise RemoteFunctionError(str(error)) from error
            self._invalidate(error)
            raise RuntimeError(f"the rollout is invalid: {error}") from error

    def _invalidate(self, error: ClientError) -> None:
        """Mark the rollout as invalid because of an error."""
        self.problem, self._is_lost = str(error), isinstance(error, NoReplyError)

    def _end(self) -> None:
        """Close the session, unless the last request got no response.

        In that case the session is left open instead of waiting again. It expires after its TTL.
        """
        session, self.session, self._agent = self.session, None, None
        is_lost, self._is_lost = self._is_lost, False
        if session is not None and not self._keep and not is_lost:
            with suppress(ClientError):
                self._client.close_session(session["session_id"])


def submit_answers(completions: Sequence[Any], environments: Sequence[Any], **_more: Any) -> list[None]:
    """Submit the last message of each rollout as the agent's answer. Use this function as a reward function of TRL.

    The function returns None as each reward. TRL calls it before `get_reward`, so evaluators can read the answer.

    Args:
        completions: The messages of each rollout.
        environments: The environment of each rollout, in the same order.
    """
    for messages, environment in zip(completions, environments, strict=True):
        last = messages[-1]
        if last["role"] == "assistant" and not last.get("tool_calls"):
            content = last.get("content") or ""
            text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
            with suppress(RemoteFunctionError, RuntimeError):  # the answer is too long, or the rollout is invalid
                environment.submit_answer(text)
    return [None] * len(completions)


def _is_wrong(error: ClientError) -> bool:
    """Return whether the server refused a request because of its content. Such an error keeps the rollout valid."""
    return is_unusable(error) or (isinstance(error, ReplyError) and error.code == _ALREADY_ANSWERED)


@cache  # cached, because trainers distinguish environments by their class, so each task must have exactly one class
def _with_functions(
    base: type[TrainingEnvironment], url: str, task: str, token: str | None
) -> type[TrainingEnvironment]:
    """Create the subclass with a task's functions. It is named like the task, because trainers print the name."""
    with Client(url, token=token) as client:
        session = client.create_session(task=task, labels=LABEL, ttl_seconds=_PROBE_SECONDS)
        described: list[Any] = client.agent(session).list_functions(format="openai")["result"]
        client.close_session(session["session_id"])
    functions = {each["function"]["name"]: each["function"] for each in described}
    methods: dict[str, Any] = {}
    for name, function in functions.items():
        attribute = name
        while hasattr(TrainingEnvironment, attribute) or (attribute != name and attribute in functions):
            attribute += "_"
        if not hasattr(base, attribute):  # a user's subclass can override the method
            methods[attribute] = _method(function)
    own = {"__doc__": f"The task {task}.", "_of_task": task, "functions": tuple(described)}
    return type(task, (base,), {**own, **methods})


def _method(described: Mapping[str, Any]) -> Callable[..., str]:
    """Create the method for a function. It doesn't send omitted arguments, so the function's own defaults apply."""
    name, schema = described["name"], described["parameters"]
    properties, required = schema.get("properties", {}), schema.get("required", ())
    # Python requires parameters without a default to come first.
    ordered = sorted(properties, key=lambda each: each not in required)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    annotations: dict[str, Any] = {}
    for each in ordered:
        default = inspect.Parameter.empty if each in required else properties[each].get("default")
        annotations[each] = _type(properties[each], schema)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(each, kind, default=default, annotation=annotations[each]))
    signature = inspect.Signature(parameters, return_annotation=str)

    def method(self: TrainingEnvironment, *args: Json, **kwargs: Json) -> str:
        arguments = signature.bind(self, *args, **kwargs).arguments
        del arguments["self"]
        return as_text(self.call(name, **arguments))

    lines = [f"    {each}: {properties[each].get('description') or each}" for each in ordered]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = "\n".join([described["description"], *(["", "Args:", *lines] if lines else [])])
    method.__annotations__ = {**annotations, "return": str}
    method.__signature__ = signature  # type: ignore[attr-defined] # inspect looks for it
    return method


def as_text(result: Json) -> str:
    """Convert a result to text for a model: a string stays unchanged, any other value becomes JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _type(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """Return the type hint of a parameter with the JSON Schema `spec`. A complex schema becomes a simple type.

    Args:
        schema: The schema of all parameters, which contains the definitions that a `$ref` names.
    """
    if "$ref" in spec:
        return _type(schema.get("$defs", {}).get(spec["$ref"].rpartition("/")[2], {}), schema)
    kinds: list[Any] = [_type(each, schema) for each in spec.get("anyOf", ())]
    if kinds:
        union: type | UnionType = kinds[0]
        for each in kinds[1:]:
            union = union | each
        return union
    if "enum" in spec:
        return Literal[tuple(spec["enum"])]
    kind = spec.get("type")
    if kind == "array" and "items" in spec:
        return list[_type(spec["items"], schema)]  # type: ignore[misc] # evaluated at run time
    return type(None) if kind == "null" else _TYPES.get(kind or "string", str)
