"""The shapes of the methods' results: one description for the OpenRPC document, the schemas and the client's types.

The rule: types only. Whatever a method answers is described here and nowhere else.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

Json = Any
"""Any JSON value."""

Failure = Literal["not_found", "arguments", "raised", "too_large", "deadline", "crashed", "episode_over"]
"""What has made a call fail; `server.execution.failure` says the same as an enumeration."""


class Envelope(TypedDict):
    """A call's result or its error; `result` is "" where there is an error."""

    result: Json
    error: str | None


class Parent(TypedDict):
    """The session and the version that a session was forked from."""

    session_id: str
    version: int


class ParticipantPaths(TypedDict):
    """The paths of a participant's address."""

    agent_path: str
    mcp_path: str


@with_config(ConfigDict(extra="forbid", strict=True))
class Perturbations(TypedDict):
    """The faults and injections that the agent of a session meets, by rules.

    `variant` is one of its task, whose rules come first; where a session is described all of them are in `rules`.
    `seed` is what chance is drawn from.
    """

    variant: NotRequired[str | None]
    rules: NotRequired[list[dict[str, Json]]]
    seed: NotRequired[str]


class SessionOutline(TypedDict):
    """What a session is, without the paths by which agents reach it; a fork has a `parent`, `task` names its task."""

    session_id: str
    toolpacks: list[str]
    version: int
    labels: dict[str, str]
    created_at: str
    expires_at: str
    parent: NotRequired[Parent]
    task: NotRequired[str]


class Session(SessionOutline):
    """A session; the agent under test gets `agent_path`, or `mcp_path` if it speaks MCP.

    `toolpack_versions` has the versions that it was created with of those of its toolpacks that come with an installed
    distribution. `participants` has the paths of each participant, the agent's included; it is missing if there is none
    but the agent.
    """

    agent_path: str
    mcp_path: str
    toolpack_versions: dict[str, str]
    participants: NotRequired[dict[str, ParticipantPaths]]
    seed: NotRequired[str]
    clock: NotRequired[str]
    clock_step_seconds: NotRequired[float]
    perturbations: NotRequired[Perturbations]


class Function(TypedDict):
    """A function in the native format."""

    name: str
    description: str
    parameters: dict[str, Json]
    returns: NotRequired[dict[str, Json]]
    toolpack: str
    read_only: bool


class ToolpackDescription(TypedDict):
    """A toolpack: JSON Schemas of its options, if it has some, and its environment, and its functions' names.

    `distribution` is what was installed with it, and `version` the version of that, unless it is in a folder.
    """

    name: str
    description: str
    distribution: NotRequired[str]
    version: NotRequired[str]
    opt_in: bool
    options: NotRequired[dict[str, Json]]
    environment: dict[str, Json]
    functions: list[str]
    tasks: int


class FunctionList(TypedDict):
    """The functions in registration order, each in the format that was asked for."""

    result: list[Function] | list[dict[str, Json]]
    error: None


class NestedCallRecord(TypedDict):
    """A nested call, in the record of the call in which it was nested.

    `parent` is the place in this list of the call that it was an argument of, unless that is the record's. One that
    hasn't returned has the error of the whole call.
    """

    function: str
    kwargs: dict[str, Json]
    result: Json
    error: str | None
    parent: NotRequired[Annotated[int, Field(ge=0)]]


class Heard(TypedDict):
    """What an agent has sent and heard of a call, where that isn't what has happened."""

    function: NotRequired[str]
    kwargs: NotRequired[dict[str, Json]]
    error: NotRequired[str | None]
    result: NotRequired[Json]


class Perturbed(TypedDict):
    """The rules that a call has met, and whether it was run; all else in its record is what has happened."""

    rules: list[str]
    run: bool
    agent: Heard


class CallRecord(TypedDict):
    """The record of a call; the calls that were nested in it, in the order in which they ran, are `nested`.

    In place of long arguments and of a long result it has `{"$cut": {"bytes": ..., "digest": ...}}`; arguments that
    came as a text that isn't JSON are `{"$text": ...}`. On a path it has a `place`, and says whose record it is.
    `changed` says how many pages of which database, or files, it has changed.
    """

    index: int
    kind: Literal["call"]
    call_id: NotRequired[str]
    function: str
    kwargs: dict[str, Json]
    result: Json
    error: str | None
    failure: NotRequired[Failure]
    version: int
    state: NotRequired[str]
    started_at: str
    duration_ms: float
    place: NotRequired[int]
    session_id: NotRequired[str]
    by: NotRequired[str]
    nested: NotRequired[list[NestedCallRecord]]
    perturbed: NotRequired[Perturbed]
    changed: NotRequired[dict[str, int]]


class ResetRecord(TypedDict):
    """The record of a reset."""

    index: int
    kind: Literal["reset"]
    call_id: NotRequired[str]
    to_version: Annotated[int, Field(ge=0)]
    version: int
    state: NotRequired[str]
    started_at: str
    duration_ms: float


class MessageRecord(TypedDict):
    """The record of a message of the conversation."""

    index: int
    kind: Literal["message"]
    call_id: NotRequired[str]
    role: Literal["system", "user", "assistant"]
    content: str
    by: NotRequired[str]
    to: NotRequired[str]
    metadata: NotRequired[dict[str, Json]]
    version: int
    started_at: str
    duration_ms: float


class AnswerRecord(TypedDict):
    """The record of the agent's answer, which ends its part."""

    index: int
    kind: Literal["answer"]
    answer: str
    by: NotRequired[str]
    version: int
    started_at: str
    duration_ms: float


class VerdictRecord(TypedDict):
    """The record of a verdict on the session's task."""

    index: int
    kind: Literal["verdict"]
    task: str
    reward: float
    passed: bool
    checks: "list[TaskCheck]"
    metrics: dict[str, Json]
    valid: NotRequired[bool]
    failure: "NotRequired[VerdictFailure]"
    perturbed: NotRequired[dict[str, int]]
    version: int
    started_at: str
    duration_ms: float


Record = Annotated[
    CallRecord | ResetRecord | MessageRecord | AnswerRecord | VerdictRecord | dict[str, Json],
    Field(union_mode="left_to_right"),
]
"""A record; the last is one of a feature that isn't the server's own, or isn't there any more: `kind` says of which."""


class Message(TypedDict):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class SaidMessage(Message):
    """A message of a conversation; one of a participant says by whom it was said, and to whom, unless to all."""

    by: NotRequired[str]
    to: NotRequired[str]


class HeardMessage(TypedDict):
    """What a participant has said or was told; `index` counts only that."""

    index: int
    by: str
    to: NotRequired[str]
    content: str


class HeardMessages(TypedDict):
    """The messages after the one that a participant has; `done` says that the answer was submitted."""

    messages: list[HeardMessage]
    done: bool


class TaskDescription(TypedDict):
    """A task; `toolpacks` and `options` are those of its sessions, `functions` those of the agent's address.

    `participants` has, by name, what each participant may do, as far as the task says it.
    """

    task: str
    index: int
    prompt: str | list[Message]
    toolpacks: list[str]
    options: dict[str, dict[str, Json]]
    functions: NotRequired[list[str]]
    max_calls: NotRequired[int]
    participants: dict[str, dict[str, Json]]
    split: str
    tags: list[str]
    metadata: dict[str, Json]
    has_solution: bool
    variants: list[str]


class TaskPage(TypedDict):
    """Some tasks; `total` counts all that match, `splits` those of each split."""

    total: int
    splits: dict[str, int]
    tasks: list[TaskDescription]


class AgentTask(TypedDict):
    """What an agent sees of its task; `calls` counts those that it has used, and `done` says that its part is over.

    In a session with participants there are its own `name` and those of the others.
    """

    prompt: NotRequired[str | list[Message]]
    max_calls: NotRequired[int]
    calls: int
    done: bool
    name: NotRequired[str]
    others: NotRequired[list[str]]


class TaskCheck(TypedDict):
    """Something that an evaluator has looked at."""

    name: str
    passed: bool
    detail: str


class VerdictFailure(TypedDict):
    """Why a verdict says nothing of the agent.

    `evaluator`, `deadline` and `world` (what is stored can't be used): no reward could be had. `infrastructure`: a call
    of the agent's was given up at its deadline, or has lost its process; there is a reward all the same.
    """

    kind: Literal["evaluator", "deadline", "world", "infrastructure"]
    type: str
    message: str


class Verdict(TypedDict):
    """The verdict on a session: its reward, and whether the task counts as done.

    If it isn't `valid` it says nothing of the agent, because of its `failure`; `reward` is null if none could be had.
    `perturbed` counts the calls that have met each rule of the session's perturbations.
    """

    task: str
    version: int
    reward: float | None
    passed: bool
    checks: list[TaskCheck]
    metrics: dict[str, Json]
    valid: bool
    failure: NotRequired[VerdictFailure]
    perturbed: dict[str, int]


class TaskRate(TypedDict):
    """How often a task was done: in so many of its rollouts with this variant, with this mean reward."""

    task: str
    variant: NotRequired[str]
    rollouts: int
    passed: int
    mean_reward: float


class SessionSummary(SessionOutline):
    """What has happened in a session: in its own records, without those of a parent.

    `records` counts them, `calls` those that are calls, and `errors` the calls that failed; `duration_ms` is the time
    that they took. `done` says that the answer was submitted. `verdict` is the one that was asked for, or else the
    recorded one, unless there is none or the session has gone on since. `problem` says why records can't be read, and
    the others are counted up to there, or why the session can't be evaluated.
    """

    variant: NotRequired[str]
    records: int
    calls: int
    errors: int
    last_function: NotRequired[str]
    duration_ms: float
    done: bool
    verdict: NotRequired[Verdict]
    problem: NotRequired[str]


class SessionSummaries(TypedDict):
    """Some sessions, as few as fit into the answer and its time; `next` is the one after which to go on, if any.

    `rates` is what the verdicts on them come to that are valid, without those on sessions that the console has made.
    `total` counts all sessions that are like these, wherever a page begins, if they were read. `digest` is there if one
    was sent as `known`.
    """

    sessions: list[SessionSummary]
    rates: list[TaskRate]
    next: NotRequired[str]
    total: NotRequired[int]
    digest: NotRequired[str]


class SolutionCall(TypedDict):
    """A call as `run_function` takes it, and the name of the participant who makes it."""

    function: str
    kwargs: dict[str, Json]
    by: str


class Solution(TypedDict):
    """One way to do a task."""

    calls: list[SolutionCall]
    answer: str


class Export(TypedDict):
    """An exact snapshot, in base64, with the fingerprints of the classes that it needs.

    Its databases and files aren't in it but in `contents`, by toolpack and field, such as `shop/db`: each as a file,
    SQLite's or tar, in base64.
    """

    format: str
    toolpacks: list[str]
    fingerprints: dict[str, str]
    version: int
    snapshot: str
    contents: dict[str, str]


class Difference(TypedDict):
    """How a call came out differently when it was run again; texts are cut at 2,000 characters."""

    index: int
    what: Literal["error", "result", "nested", "state"]
    recorded: NotRequired[str]
    replayed: NotRequired[str]


class Versions(TypedDict):
    """The version of a toolpack with which a session was created, and the one that is loaded, if it has one."""

    recorded: str
    replayed: NotRequired[str]


class Replay(TypedDict):
    """The new session, how many records were run again in it, and the first difference.

    `complete` is true if all records were run again without a difference. `other_versions` has the toolpacks that were
    at another version when the session was created.
    """

    session: Session
    replayed: int
    complete: bool
    diverged: NotRequired[Difference]
    other_versions: dict[str, Versions]


class Bundle(TypedDict):
    """A session as one file, in base64, and its size in bytes."""

    format: str
    size: int
    bundle: str
