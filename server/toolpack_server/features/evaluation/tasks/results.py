"""Result types of the task methods: tasks, answers, verdicts, session summaries and solutions.

Like `server/toolpack_server/protocol/results.py`, the module contains only types.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import Json, Message, SessionOutline


class SessionTask(TypedDict):
    """`task` names the session's task."""

    task: NotRequired[str]


class AnswerRecord(TypedDict):
    """Record of the agent's answer, which ends the agent's part."""

    index: int
    kind: Literal["answer"]
    call_id: NotRequired[str]
    answer: str
    by: NotRequired[str]
    version: int
    started_at: str
    duration_ms: float


class TaskCheck(TypedDict):
    """A named condition that an evaluator checked."""

    name: str
    passed: bool
    detail: str


class VerdictFailure(TypedDict):
    """The reason why a verdict is invalid, so that it doesn't count for or against the agent.

    `kind` is one of these. `evaluator`: the evaluator failed. `deadline`: the evaluator exceeded its deadline. `world`:
    the stored environments can't be used. With these three kinds, the verdict contains no reward. `infrastructure`: a
    call of the agent or an event exceeded its deadline or killed its process. `participant`: another participant
    failed, and `type` is the reason.
    """

    kind: Literal["evaluator", "deadline", "world", "infrastructure", "participant"]
    type: str
    message: str


class Verdict(TypedDict):
    """The verdict on a session: its reward, and whether it passed.

    A verdict that isn't `valid` doesn't count for or against the agent; `failure` says why. `reward` is null if no
    reward could be computed. `perturbed` maps each perturbation rule to the number of calls that the rule changed.
    `reactions` maps each event to the seconds from when it first happened until the agent's next call that changed the
    environment.
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
    reactions: NotRequired[dict[str, float]]


class VerdictRecord(TypedDict):
    """Record of a verdict on the session's task. If `ends` is true, the verdict ended the agent's part."""

    index: int
    kind: Literal["verdict"]
    task: str
    reward: float
    passed: bool
    checks: list[TaskCheck]
    metrics: dict[str, Json]
    valid: NotRequired[bool]
    failure: NotRequired[VerdictFailure]
    perturbed: NotRequired[dict[str, int]]
    reactions: NotRequired[dict[str, float]]
    ends: NotRequired[bool]
    version: int
    started_at: str
    duration_ms: float


class TaskDescription(TypedDict):
    """A task. Its sessions are created with `toolpacks` and `options`. The agent can call `functions`.

    `participants` maps the name of each participant to the rights that the task sets.
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
    """A page of tasks. `total` is the number of matching tasks.

    `splits` counts the matching tasks of each split, and ignores the parameter `split`.
    """

    total: int
    splits: dict[str, int]
    tasks: list[TaskDescription]


class AgentTask(TypedDict):
    """The task as the caller sees it. `calls` counts the caller's calls.

    `done` is true when the caller's part is over, so that it can make no more calls.

    In a session with participants, `name` is the caller's own name, and `others` lists the other participants.
    """

    prompt: NotRequired[str | list[Message]]
    max_calls: NotRequired[int]
    calls: int
    done: bool
    name: NotRequired[str]
    others: NotRequired[list[str]]


class TaskRate(TypedDict):
    """The number of rollouts of a task with one variant, how many of them passed, and their mean reward."""

    task: str
    variant: NotRequired[str]
    rollouts: int
    passed: int
    mean_reward: float


class SessionSummary(SessionOutline, SessionTask):
    """A summary of a session's own records, without those of its parent.

    `records` counts the records, `calls` the calls, and `errors` the failed calls. `duration_ms` is the time that all
    records took together. `done` is true when the agent's part is over. With `evaluate` in the request, `verdict` is
    the new verdict; otherwise it is the recorded verdict, if that is the last record. `problem` says why the session
    can't be evaluated, or why a record can't be read. In the latter case, only earlier records are counted.
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
    """A page of a list of sessions. The page ends early if the result becomes too large or takes too long.

    If further sessions match, `next` is set: pass it as `after` to get the next page. `rates` summarizes the valid
    verdicts of this page, without forks created by the console or a review. `total` is the number of matching sessions
    on all pages; it is set if the request asked for it. `digest` is set if the request contained `known`.
    """

    sessions: list[SessionSummary]
    rates: list[TaskRate]
    next: NotRequired[str]
    total: NotRequired[int]
    digest: NotRequired[str]


class SolutionCall(TypedDict):
    """A call in the form of `run_function`. `by` names the participant that makes the call.

    If the session's history contains an equal call, `path_index` is the index of that call in the history. Otherwise
    `similar` is the index of a call to the same function with other arguments, if the history contains one. Each call
    of the history is used at most once.
    """

    function: str
    kwargs: dict[str, Json]
    by: str
    path_index: NotRequired[int]
    similar: NotRequired[int]


class TaskSolution(TypedDict):
    """One way to do a task: the calls and the answer."""

    calls: list[SolutionCall]
    answer: str


class Solution(TaskSolution):
    """One way to do a task. `rest` contains the calls of the solution that the session's history lacks."""

    rest: list[SolutionCall]


class ReviewedRecord(TypedDict):
    """A call or the answer under review. `before` and `after` are the values of the steps before and after it.

    `mark` is `solution` (equal to a call of the solution), `own` (another call, and the value stayed the same), `read`
    (nothing changed), `failed` (the call failed), `lost` (the value fell most here), `worse` (the value fell less),
    `late` (no reward could be reached any more), `unknown` (a value isn't known), or `end` (the answer).
    """

    index: int
    before: NotRequired[float]
    after: NotRequired[float]
    mark: Literal["solution", "own", "read", "failed", "lost", "worse", "late", "unknown", "end"]


class ReviewCheck(TypedDict):
    """One of the evaluator's checks, and whether it passes at a step."""

    name: str
    passed: bool


class ReviewStep(TypedDict):
    """A step under review: a version, its value if known, and the evaluator's checks at this version."""

    version: int
    value: NotRequired[float]
    checks: list[ReviewCheck]


class ReviewLine(TypedDict):
    """A continuation from a version: calls, an answer, and their reward. `fork` is the session that has played it."""

    version: int
    calls: list[SolutionCall]
    answer: str
    reward: float
    fork: NotRequired[str]


class Review(TypedDict):
    """The review of a rollout. `lost` is the index of the record that lost the rollout. `line` would have won instead.

    `lost_at` says in a few words where a failed rollout was lost, so that you can count how often rollouts are lost at
    the same place. `never_called` lists the solution's calls that were missing before `lost`, or at the rollout's end
    if no record lost it. Values are lower bounds, because a better agent might know another continuation. If the
    solution doesn't win, the review uses the calls of a `sibling`: a rollout of the same run and task that passed.
    """

    session_id: str
    task: str
    reward: float | None
    passed: bool
    summary: str
    records: list[ReviewedRecord]
    steps: list[ReviewStep]
    checks: list[TaskCheck]
    never_called: list[SolutionCall]
    lost: NotRequired[int]
    lost_at: NotRequired[str]
    line: NotRequired[ReviewLine]
    sibling: NotRequired[str]
