"""Result types of the task methods: tasks, answers, verdicts, session summaries and solutions.

Types only, as in `server/toolpack_server/protocol/results.py`.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic rejects the TypedDict of typing

from toolpack_server.protocol.results import Json, Message, SessionOutline


class SessionTask(TypedDict):
    """`task` names the session's task."""

    task: NotRequired[str]


class AnswerRecord(TypedDict):
    """Record of the agent's answer. It ends the agent's part."""

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

    `evaluator`: the evaluator failed. `deadline`: the evaluator exceeded its deadline. `world`: the stored environments
    can't be used. With these kinds, the verdict has no reward. `infrastructure`: a call of the agent or an event
    exceeded its deadline or ended its process. `participant`: another participant failed; `type` is the reason.
    """

    kind: Literal["evaluator", "deadline", "world", "infrastructure", "participant"]
    type: str
    message: str


class Verdict(TypedDict):
    """The verdict on a session: its reward, and whether it passed.

    A verdict that isn't `valid` doesn't count for or against the agent; `failure` gives the reason. `reward` is null if
    no reward could be computed. `perturbed` has, by perturbation rule, the number of calls that the rule changed.
    `reactions` has, by event, the seconds from its first time to the agent's next change.
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
    """A task. `toolpacks` and `options` are those of its sessions, `functions` those at the agent's address.

    `participants` maps names to the rights that the task sets for each participant.
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
    """A page of tasks. `total` counts all tasks that match, `splits` the matching tasks of each split."""

    total: int
    splits: dict[str, int]
    tasks: list[TaskDescription]


class AgentTask(TypedDict):
    """The task as the caller sees it. `calls` counts the caller's calls. `done` is true when its part is over.

    In a session with participants, `name` is the caller's own name, and `others` has the names of all others.
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

    `records` counts the records, `calls` the calls, and `errors` the calls that failed. `duration_ms` is the time that
    all records took. `done` is true when the agent's part is over. `verdict` is the new verdict if the request had
    `evaluate`, else the recorded one if it is the last record. `problem` says why the session can't be evaluated, or
    why a record can't be read; then only earlier records are counted.
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
    """A page of a list of sessions. It ends early if the answer becomes too large or takes too long.

    If there are more sessions, `next` is set: pass it as `after` to get the next page. `rates` summarizes the valid
    verdicts of this page, without forks that the console or a review created. `total` is the number of matching
    sessions on all pages, if they were counted. `digest` is set if the request had `known`.
    """

    sessions: list[SessionSummary]
    rates: list[TaskRate]
    next: NotRequired[str]
    total: NotRequired[int]
    digest: NotRequired[str]


class SolutionCall(TypedDict):
    """A call in the form of `run_function`, and the name of the participant who makes it.

    If the session's history has an equal call, `path_index` is its index there. Otherwise `similar` is the index of a
    call of the same function with other arguments, if the history has such a call. Each call of the history is used at
    most once.
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
    """One way to do a task. `rest` has those of its calls that the session's history lacks."""

    rest: list[SolutionCall]


class ReviewedRecord(TypedDict):
    """A call or the answer under review. `before` and `after` are the values of the steps around it, if known.

    `mark`: `solution` (equal to a call of the solution), `own` (another call, and the value stayed), `read` (nothing
    changed), `failed`, `lost` (the value fell most), `worse` (the value fell less), `late` (no reward could be reached
    any more), `unknown` (a value isn't known), or `end` (the answer).
    """

    index: int
    before: NotRequired[float]
    after: NotRequired[float]
    mark: Literal["solution", "own", "read", "failed", "lost", "worse", "late", "unknown", "end"]


class ReviewCheck(TypedDict):
    """A check of the evaluator and whether it passes at a step."""

    name: str
    passed: bool


class ReviewStep(TypedDict):
    """A step under review: a version, its value if known, and the checks of the evaluator at this version."""

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
    """The review of a rollout. `lost` is the index of the record that lost it. `line` would have won instead.

    `lost_at` says in a few words where a failed rollout was lost, so that equal places in several rollouts can be
    counted. `never_called` has the calls of the solution that the rollout lacked before `lost`, or at its end if no
    record lost it. Values are lower bounds, because a better agent may know another continuation. If the solution
    doesn't win, the review uses the calls of a `sibling`: a rollout of the same run and task that passed.
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
