"""Result types of the task methods: tasks, answers, verdicts, session summaries and solutions.

Types only, as in `server/toolpack_server/protocol/results.py`.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

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

    With the kinds `evaluator`, `deadline` and `world` (the stored environments can't be used), the verdict has no
    reward. With the other two it has one. `infrastructure`: a call of the agent or an event exceeded its deadline or
    lost its process. `participant`: another participant failed; `type` is the reason.
    """

    kind: Literal["evaluator", "deadline", "world", "infrastructure", "participant"]
    type: str
    message: str


class Verdict(TypedDict):
    """The verdict on a session: its reward, and whether it passed.

    A verdict that isn't `valid` doesn't count for or against the agent; `failure` gives the reason. `reward` is null if
    none could be computed. `perturbed` counts, for each perturbation rule of the session, the calls that it matched.
    `reactions` has, for each event, the seconds from its first time to the agent's next change.
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
    """Record of a verdict on the session's task. If `ends` is true, it ended the agent's part."""

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
    """The task as its agent sees it. `calls` counts the calls it has used; `done` is true when its part is over.

    In a session with participants, `name` is the agent's own name and `others` has those of the other participants.
    """

    prompt: NotRequired[str | list[Message]]
    max_calls: NotRequired[int]
    calls: int
    done: bool
    name: NotRequired[str]
    others: NotRequired[list[str]]


class TaskRate(TypedDict):
    """Number of rollouts of a task with one variant, how many passed, and their mean reward."""

    task: str
    variant: NotRequired[str]
    rollouts: int
    passed: int
    mean_reward: float


class SessionSummary(SessionOutline, SessionTask):
    """A summary of a session's own records, without those of its parent.

    `records` counts them, `calls` the calls among them, and `errors` the calls that failed; `duration_ms` is the time
    that all records took. `done` is true when the agent's part is over. `verdict` is the new one if `evaluate` was set,
    else the recorded one; a recorded verdict no longer counts after a further record. `problem` says why the session
    can't be evaluated, or why a record can't be read; then only the records before it are counted.
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

    If the history has an equal call, `path_index` is its index there. If not, `similar` is the index of a call of the
    same function with other arguments that equals no call of the solution.
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
    """One way to do a task: the calls and the answer. `rest` has the calls that the session's history lacks."""

    rest: list[SolutionCall]


class ReviewedRecord(TypedDict):
    """A call or the answer under review: the values of the steps before and after it, if they are known.

    `mark`: `solution` (as in the solution), `own` (in its own way, and the value stayed), `read`, `failed`, `lost` (the
    value fell most), `worse` (it fell less), `late` (nothing could be won any more), `unknown`, or `end` (the answer).
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
    """A step under review: a version, its value if it is known, and the checks if the agent stops there."""

    version: int
    value: NotRequired[float]
    checks: list[ReviewCheck]


class ReviewLine(TypedDict):
    """A continuation from a version: calls, the answer, and their reward. `fork` is the session that has played it."""

    version: int
    calls: list[SolutionCall]
    answer: str
    reward: float
    fork: NotRequired[str]


class Review(TypedDict):
    """The review of a rollout. `lost` is the index of the record that lost it, and `line` would have won before it.

    `lost_at` says in a few words where a failed rollout was lost, to count the same place in several rollouts.
    `never_called` has the calls that the rollout lacked before `lost`, or at its end if it could still be won there.
    Values are lower bounds: a better agent may know another continuation. If the solution isn't one, the calls of a
    `sibling` are tried: a rollout of the same run and task that passed.
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
