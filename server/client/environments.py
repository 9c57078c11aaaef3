"""Environments for trainers: one rollout of a task at a time, with the task's functions as methods.

The rule: a rollout is a session, and the next one begins with another session, so nothing of it is left. Whoever asks
for the reward of a rollout that says nothing of the agent, as the machine or the server has failed, gets None, which
trainers leave out, and never 0.

The functions are methods of a class that is made for each environment, as trainers (TRL's `environment_factory`) look
for them there. What else an environment can do isn't a plain function of the class, so no model is offered it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Self

from server.client.clients import AgentClient, Client
from server.errors import ClientError, RemoteFunctionError
from server.results import Json, Session, Verdict

LABEL = {"environment": "trainer"}  # which the sessions of all environments have
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_PROBE_SECONDS = 60.0  # for which a session lives that is only asked for its functions


class _NoTool:
    """A method that isn't a plain function of its class, so that trainers don't offer it to the model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self._function.__get__(instance, owner)


class Environment:
    """One task, played in one session after the other.

    The functions that the task's agent has are methods, with signatures and docstrings: `environment.get_balance()`.
    They return the result, and raise the function's own error as a `RemoteFunctionError`, as a trainer tells the model
    what a tool has raised. A function whose name is taken here, such as `close`, is reached with `call` only.

    Args:
        url: The server's.
        task: The task, as `toolpack/name`.
        token: For `/rpc`, if the server asks for one. No model and no function sees it.
        labels: Labels of the sessions, besides `environment=trainer`: by them those of a program that died are closed,
            with `close_sessions`.
        create: Further parameters of `create_session`, such as `seed`, `perturbations` and `ttl_seconds`.

    Attributes:
        session: The session of the rollout; None before `reset` and after `close`.
        verdict: The verdict on the rollout, when `get_reward` has asked for it.
        problem: Why the rollout is invalid, once that is known; None if it isn't.

    Raises:
        ClientError: The server doesn't answer, or there is no such task.
    """

    session: Session | None
    verdict: Verdict | None
    problem: str | None

    def __new__(cls, url: str, task: str, *, token: str | None = None, **_more: Any) -> Self:
        """Make an environment of the class that has the task's functions."""
        made: Any = cls if "_of_task" in vars(cls) else _with_functions(cls, url, task, token)  # type: ignore[arg-type] # a class is hashable
        found: Self = object.__new__(made)
        return found

    def __init__(
        self, url: str, task: str, *, token: str | None = None, labels: Mapping[str, str] | None = None, **create: Any
    ) -> None:
        self._given: dict[str, Any] = {"url": url, "task": task, "token": token, "labels": labels, **create}
        self._url = url.rstrip("/")
        self._task = task
        self._client = Client(url, token=token)
        self._labels = {**LABEL, **(labels or {})}
        self._create = create
        self._agent: AgentClient | None = None
        self.session = self.verdict = self.problem = None

    def reset(self, **_row: Any) -> str:
        """Close the last rollout, begin the next one, and get its prompt.

        What a trainer passes of a row of its data is ignored. If the server is lost, the rollout is invalid.
        """
        self._end()
        self.verdict = self.problem = None
        try:
            self._begin(self._client.create_session(task=self._task, labels=self._labels, **self._create))
            prompt = self._asked().get_task()["prompt"]
        except ClientError as error:
            self.problem = str(error)
            return ""
        if prompt is None or isinstance(prompt, str):
            return prompt or ""
        return "\n\n".join(message["content"] for message in prompt)

    def get_reward(self) -> float | None:
        """Get the reward of the rollout; None if it says nothing of the agent, as when the server was lost."""
        if self.problem is None and self.session is None:
            self.problem = "There is no rollout: call reset first."
        if self.problem is None and self.session is not None:
            try:
                verdict = self._client.evaluate_session(self.session["session_id"], record=False, raise_on_error=False)
            except ClientError as error:
                self.problem = str(error)
            else:
                self.verdict = verdict
                if not verdict["valid"]:
                    self.problem = (verdict["failure"] or {"message": "invalid"})["message"]
        return None if self.problem is not None or self.verdict is None else self.verdict["reward"]

    @_NoTool
    def call(self, function: str, /, **kwargs: Json) -> Json:
        """Call a function by its name.

        Raises:
            RemoteFunctionError: The function has failed; the text is its error.
            RuntimeError: There is no rollout, or the server is lost: the rollout is invalid.
        """
        if self.problem is not None:
            raise RuntimeError(f"the rollout is invalid: {self.problem}")
        try:
            told = self._asked().run_function(function, kwargs)
        except ClientError as error:
            self.problem = str(error)
            raise RuntimeError(f"the rollout is invalid: {error}") from error
        if told["error"] is not None:
            raise RemoteFunctionError(told["error"])
        return told["result"]

    @_NoTool
    def submit_answer(self, answer: str = "") -> None:
        """Submit the agent's answer, which ends its part."""
        try:
            self._asked().submit_answer(answer)
        except ClientError as error:
            self.problem = str(error)

    @_NoTool
    @contextmanager
    def group(self, count: int) -> Iterator[list[Self]]:
        """Begin rollouts that start alike: one session, forked so many times; all are closed together.

        Each has its number as the label `rollout`. The session they are forked from has only the label `environment`,
        so it is in no run.

        Raises:
            ClientError: They can't be begun.
        """
        members: list[Self] = []
        start = self._client.create_session(task=self._task, labels=LABEL, **self._create)["session_id"]
        try:
            for number in range(count):
                labels = {**self._labels, "rollout": str(number)}
                (fork,) = self._client.fork_session(start, labels=labels)
                member = type(self)(**self._given)
                member._begin(fork)  # noqa: SLF001 - of the same class
                members.append(member)
            yield members
        finally:
            for member in members:
                member.close()
            with suppress(ClientError):
                self._client.close_session(start)

    @_NoTool
    def close(self) -> None:
        """Close the rollout's session, and the connections; done twice it changes nothing."""
        self._end()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _begin(self, session: Session) -> None:
        self.session = session
        self._agent = AgentClient(self._url + session["agent_path"])

    def _asked(self) -> AgentClient:
        if self._agent is None:
            raise RuntimeError("there is no rollout: call reset first")
        return self._agent

    def _end(self) -> None:
        """Close the session; one that can't be closed ends at its TTL, or with `close_orphans`."""
        session, self.session = self.session, None
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        if session is not None:
            with suppress(ClientError):
                self._client.close_session(session["session_id"])


@lru_cache(maxsize=256)
def _with_functions(base: type[Environment], url: str, task: str, token: str | None) -> type[Environment]:
    """Get a class with a task's functions: the same one for the same task, as trainers tell environments by class."""
    with Client(url, token=token) as client:
        session = client.create_session(task=task, labels=LABEL, ttl_seconds=_PROBE_SECONDS)
        with AgentClient(url.rstrip("/") + session["agent_path"]) as agent:
            described: list[Any] = agent.list_functions(format="openai")["result"]
        client.close_session(session["session_id"])
    functions = [each["function"] for each in described]
    methods = {each["name"]: _method(each) for each in functions if not hasattr(base, each["name"])}
    return type(base.__name__, (base,), {"__doc__": f"The task {task}.", "_of_task": task, **methods})


def _method(described: Mapping[str, Any]) -> Callable[..., Json]:
    """Make the method for a function; what isn't given isn't sent, so the function's own default holds."""
    name, schema = described["name"], described["parameters"]
    properties, required = schema.get("properties", {}), schema.get("required", ())
    ordered = sorted(properties, key=lambda each: each not in required)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    annotations: dict[str, Any] = {}
    for each in ordered:
        default = inspect.Parameter.empty if each in required else properties[each].get("default")
        annotations[each] = _type(properties[each], schema)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(each, kind, default=default, annotation=annotations[each]))
    signature = inspect.Signature(parameters, return_annotation=Any)

    def method(self: Environment, *args: Json, **kwargs: Json) -> Json:
        given = signature.bind(self, *args, **kwargs).arguments
        del given["self"]
        return self.call(name, **given)

    lines = [f"    {each}: {properties[each].get('description') or each}" for each in ordered]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = "\n".join([described["description"], *(["", "Args:", *lines] if lines else [])])
    method.__annotations__ = {**annotations, "return": Any}
    method.__signature__ = signature  # type: ignore[attr-defined] # inspect looks for it
    return method


def _type(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """Get the type hint of a parameter, as far as JSON Schema says it in a word."""
    if "$ref" in spec:
        return _type(schema.get("$defs", {}).get(spec["$ref"].rpartition("/")[2], {}), schema)
    kinds: list[Any] = [_type(each, schema) for each in spec.get("anyOf", ())]
    if kinds:
        found: type | UnionType = kinds[0]
        for each in kinds[1:]:
            found = found | each
        return found
    if "enum" in spec:
        return Literal[tuple(spec["enum"])]
    kind = spec.get("type")
    if kind == "array" and "items" in spec:
        return list[_type(spec["items"], schema)]  # type: ignore[misc] # made when it runs
    return type(None) if kind == "null" else _TYPES.get(kind or "string", str)
