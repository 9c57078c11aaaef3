"""Environments for trainers: one rollout of a task at a time, with the task's functions as methods.

A rollout is a session, and the next one begins with another session, so nothing of it is left. Whoever asks
for the reward of a rollout that says nothing of the agent, as the machine or the server has failed, gets None, which
trainers leave out, and never 0.

The functions are methods of a class that is made for each task, as trainers (TRL's `environment_factory`) look for them
there. What else an environment can do isn't a plain function of the class, so no model is offered it.
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

LABEL = {"environment": "trainer"}  # which the sessions of all environments have
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_PROBE_SECONDS = 60.0  # for which a session lives that is only asked for its functions
_ANSWERED = -32014  # the code of a second answer


class _NoTool:
    """A method that isn't a plain function of its class, so that trainers don't offer it to the model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self._function.__get__(instance, owner)


class TrainingEnvironment:
    """One task, played in one session after the other.

    The functions that the task's agent has are methods, with signatures and docstrings: `environment.get_balance()`.
    They return what a model reads: a text as it is, any other result as its JSON. They raise the function's own error
    as a `RemoteFunctionError`, as a trainer tells the model what a tool has raised. A function whose name is taken
    here, such as `close`, is the method `close_`; models are offered it under its own name all the same.

    Args:
        url: The server's.
        task: The task, as `toolpack/name`.
        token: For `/rpc`, if the server asks for one. No model and no function sees it.
        labels: Labels of the sessions, besides `environment=trainer`: by them those of a program that died are closed,
            with `close_session`.
        keep: Keep the sessions, with the verdict of `get_reward` as a record, until they expire: the console's page
            of runs shows them.
        seed: The seed of the sessions, with which all rollouts meet the same chance and time; a number is written out.
        create: Further parameters of `create_session`, such as `perturbations` and `ttl_seconds`.

    Attributes:
        functions: The task's functions, as chat completions take them.
        session: The session of the rollout; None before `reset` and after `close`.
        verdict: The verdict on the rollout, when `get_reward` has asked for it.
        problem: Why the rollout is invalid, once that is known; None if it isn't.

    Raises:
        ClientError: The server doesn't answer, or there is no such task.
    """

    functions: tuple[dict[str, Any], ...] = ()
    session: Session | None = None
    verdict: Verdict | None = None
    problem: str | None = None

    def __new__(cls, url: str, task: str, *, token: str | None = None, **_more: Any) -> Self:
        """Make an environment of the class that has the task's functions."""
        made: Any = cls if "_of_task" in vars(cls) else _with_functions(cls, url, task, token)  # type: ignore[arg-type] # a class is hashable
        found: Self = object.__new__(made)
        return found

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
        self._given: dict[str, Any] = {"url": url, "task": task, "token": token, "labels": labels, "keep": keep}
        self._given |= create
        self._task = task
        self._client = Client(url, token=token)
        self._labels = {**LABEL, **(labels or {})}
        self._keep = keep
        self._create = create
        self._agent: AgentClient | None = None
        self._is_lost = False

    def reset(self, **_row: Any) -> str:
        """Close the last rollout, begin the next one, and get its prompt.

        What a trainer passes of a row of its data is ignored. If the server can't be reached, the rollout is invalid.

        Raises:
            ReplyError: What was given for `create_session` is wrong.
        """
        self._end()
        self.verdict = self.problem = None
        try:
            self._begin(self._client.create_session(task=self._task, labels=self._labels, **self._create))
            prompt = self._asked().get_task()["prompt"]
        except ClientError as error:
            if _is_wrong(error):
                raise
            self._note(error)
            return ""
        if prompt is None or isinstance(prompt, str):
            return prompt or ""
        return "\n\n".join(message["content"] for message in prompt)

    def get_reward(self) -> float | None:
        """Get the reward of the rollout; None if it says nothing of the agent, as without a server."""
        if self.problem is None and self.session is None:
            self.problem = "There is no rollout: call reset first."
        if self.problem is None and self.session is not None:
            session_id = self.session["session_id"]
            try:
                verdict = self._client.evaluate_session(session_id, record=self._keep, raise_on_error=False)
            except ClientError as error:
                self._note(error)
            else:
                self.verdict = verdict
                if not verdict["valid"]:
                    self.problem = (verdict["failure"] or {"message": "invalid"})["message"]
        return None if self.problem is not None or self.verdict is None else self.verdict["reward"]

    @_NoTool
    def call(self, function: str, /, **kwargs: Json) -> Json:
        """Call a function by its name, and get its result.

        Raises:
            RemoteFunctionError: The function has failed, or the call is wrong; the text is the error.
            RuntimeError: There is no rollout, or the server can't be reached: then it is invalid.
        """
        told = self._ask(lambda agent: agent.run_function(function, kwargs))
        if told["error"] is not None:
            raise RemoteFunctionError(told["error"])
        return told["result"]

    @_NoTool
    def submit_answer(self, answer: str = "") -> None:
        """Submit the agent's answer, which ends its part.

        Raises:
            RemoteFunctionError: The answer is too long, or another was submitted before.
            RuntimeError: There is no rollout, or the server can't be reached: then it is invalid.
        """
        self._ask(lambda agent: agent.submit_answer(answer))

    @_NoTool
    @contextmanager
    def group(self, count: int) -> Iterator[list[Self]]:
        """Begin rollouts that start alike: one session, forked so many times; all are closed together.

        Each has its number as the label `rollout`. The session they are forked from is closed at once, and has only
        the label `environment`, so it is in no run.

        Raises:
            ClientError: They can't be begun.
        """
        members: list[Self] = []
        try:
            start = self._client.create_session(task=self._task, labels=LABEL, **self._create)["session_id"]
            try:
                members.extend(self._forked(start, rollout=str(number)) for number in range(count))
            finally:
                with suppress(ClientError):
                    self._client.close_session(start)
            yield members
        finally:
            for member in members:
                member.close()

    @_NoTool
    def fork(self) -> Self:
        """Begin another rollout from where this one is, in an environment of its own, which must be closed, too.

        Raises:
            ClientError: It can't be begun.
        """
        if self.session is None:
            raise RuntimeError("there is no rollout: call reset first")
        return self._forked(self.session["session_id"])

    @_NoTool
    def close(self) -> None:
        """Close the rollout's session, unless it is kept, and the connections; done twice it changes nothing."""
        self._end()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _begin(self, session: Session) -> None:
        self.session, self._agent = session, self._client.agent(session)

    def _forked(self, session_id: str, **labels: str) -> Self:
        (session,) = self._client.fork_session(session_id, labels={**self._labels, **labels})
        made = type(self)(**self._given)
        made._begin(session)  # noqa: SLF001 - of the same class
        return made

    def _asked(self) -> AgentClient:
        if self._agent is None:
            raise RuntimeError("there is no rollout: call reset first")
        return self._agent

    def _ask(self, request: Callable[[AgentClient], Any]) -> Any:
        """Send a request of the agent's; if no answer to it can be had, the rollout is invalid."""
        if self.problem is not None:
            raise RuntimeError(f"the rollout is invalid: {self.problem}")
        try:
            return request(self._asked())
        except ClientError as error:
            if _is_wrong(error):  # the agent's own fault, which it hears
                raise RemoteFunctionError(str(error)) from error
            self._note(error)
            raise RuntimeError(f"the rollout is invalid: {error}") from error

    def _note(self, error: ClientError) -> None:
        """Note why the rollout is invalid."""
        self.problem, self._is_lost = str(error), isinstance(error, NoReplyError)

    def _end(self) -> None:
        """Leave the session; one that can't be closed ends at its TTL, or with `close_session` and its labels.

        If the server can't be reached, it was waited for once, and isn't again to close a session.
        """
        session, self.session, self._agent = self.session, None, None
        is_lost, self._is_lost = self._is_lost, False
        if session is not None and not self._keep and not is_lost:
            with suppress(ClientError):
                self._client.close_session(session["session_id"])


def submit_answers(completions: Sequence[Any], environments: Sequence[Any], **_more: Any) -> list[None]:
    """Submit what each model has said last as its answer: a reward function of TRL's, which gives no reward itself.

    TRL calls it before `get_reward`, so that tasks whose evaluators read the answer can be done.

    Args:
        completions: The messages that each model has written and heard.
        environments: The environment of each.
    """
    for messages, environment in zip(completions, environments, strict=True):
        last = messages[-1]
        if last["role"] == "assistant" and not last.get("tool_calls"):
            said = last.get("content") or ""
            text = said if isinstance(said, str) else "".join(part.get("text", "") for part in said)
            with suppress(RemoteFunctionError, RuntimeError):  # too long, or the rollout is invalid
                environment.submit_answer(text)
    return [None] * len(completions)


def _is_wrong(error: ClientError) -> bool:
    """Get whether a request was refused for what it asked, so that it says nothing of the server."""
    return is_unusable(error) or (isinstance(error, ReplyError) and error.code == _ANSWERED)


@cache  # as long as the program runs: trainers tell environments by their class
def _with_functions(
    base: type[TrainingEnvironment], url: str, task: str, token: str | None
) -> type[TrainingEnvironment]:
    """Get a class with a task's functions, the same one for the same task; trainers show its name beside the reward."""
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
        if not hasattr(base, attribute):  # a class of the user's may have a method of its own instead
            methods[attribute] = _method(function)
    own = {"__doc__": f"The task {task}.", "_of_task": task, "functions": tuple(described)}
    return type(task, (base,), {**own, **methods})


def _method(described: Mapping[str, Any]) -> Callable[..., str]:
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
    signature = inspect.Signature(parameters, return_annotation=str)

    def method(self: TrainingEnvironment, *args: Json, **kwargs: Json) -> str:
        given = signature.bind(self, *args, **kwargs).arguments
        del given["self"]
        return as_text(self.call(name, **given))

    lines = [f"    {each}: {properties[each].get('description') or each}" for each in ordered]
    method.__name__ = method.__qualname__ = name
    method.__doc__ = "\n".join([described["description"], *(["", "Args:", *lines] if lines else [])])
    method.__annotations__ = {**annotations, "return": str}
    method.__signature__ = signature  # type: ignore[attr-defined] # inspect looks for it
    return method


def as_text(result: Json) -> str:
    """Get what a model reads of a result: a text as it is, anything else as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


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
