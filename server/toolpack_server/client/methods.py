"""The methods of the clients: their parameters, and the types of their results.

Written by `python -m tools.schemas` from the server's methods: don't edit it. What is done to send a request is in
`requests`; the functions here have no bodies.
"""
# mypy: disable-error-code="empty-body"

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from toolpack_server.client.requests import requests
from toolpack_server.features.evaluation.episodes.results import MessageRecord
from toolpack_server.features.evaluation.participants.results import FailureRecord, HeardMessages, TurnRecord
from toolpack_server.features.evaluation.perturbations.results import Perturbations, Perturbed
from toolpack_server.features.evaluation.tasks.results import (
    AgentTask,
    AnswerRecord,
    SessionSummaries,
    Solution,
    TaskDescription,
    TaskPage,
    Verdict,
    VerdictRecord,
)
from toolpack_server.features.replay.results import Bundle, Difference, Versions
from toolpack_server.protocol.results import (
    Envelope,
    Export,
    FunctionList,
    NestedCallRecord,
    Parent,
    ResetRecord,
    ToolpackDescription,
)


class ParticipantPaths(TypedDict):
    """The paths of a participant's address. `mcp_path` is the session's path for agents that speak MCP."""

    agent_path: str
    mcp_path: str


class Session(TypedDict):
    """A session. Its agent gets `agent_path`.

    `toolpack_versions` has the versions, at the session's creation, of toolpacks that are installed distributions.
    `mcp_path` is the session's path for agents that speak MCP. `task` names the session's task. Its chance is drawn
    from `seed`; its time begins at `clock`, and each call takes `clock_step_seconds`. `participants` has the paths of
    each participant. It is omitted if the agent is the only one. `perturbations` are the rules for the session's agent.
    """

    session_id: str
    toolpacks: list[str]
    version: int
    labels: dict[str, str]
    created_at: str
    expires_at: str
    parent: NotRequired[Parent]
    agent_path: str
    toolpack_versions: dict[str, str]
    mcp_path: str
    task: NotRequired[str]
    seed: NotRequired[str]
    clock: NotRequired[str]
    clock_step_seconds: NotRequired[float]
    participants: NotRequired[dict[str, ParticipantPaths]]
    perturbations: NotRequired[Perturbations]


class CallRecord(TypedDict):
    """The record of a call. `nested` has the nested calls in the order in which they ran.

    Long arguments and long results are replaced by `{"$cut": {"bytes": ..., "digest": ...}}`. Arguments that came as a
    text that isn't JSON are `{"$text": ...}`. In a history, `place` is the record's index and `session_id` its session.
    `changed` has the number of changed pages by database, and of changed files by file tree. `perturbed` is present if
    rules changed the call.
    """

    index: int
    kind: Literal["call"]
    call_id: NotRequired[str]
    function: str
    kwargs: dict[str, Any]
    result: Any
    error: str | None
    failure: NotRequired[
        Literal["not_found", "arguments", "raised", "too_large", "deadline", "crashed", "episode_over"]
    ]
    version: int
    state: NotRequired[str]
    started_at: str
    duration_ms: float
    place: NotRequired[int]
    session_id: NotRequired[str]
    by: NotRequired[str]
    nested: NotRequired[list[NestedCallRecord]]
    changed: NotRequired[dict[str, int]]
    perturbed: NotRequired[Perturbed]


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


class AgentMethods:
    """The methods of an agent's address, where the session is implied."""

    @requests("list_functions")
    def list_functions(
        self,
        *,
        format: Literal["native", "openai", "anthropic", "gemini", "mcp"] = "native",
    ) -> FunctionList:
        """List the session's functions, in registration order.

        Args:
            format: Format of the function descriptions.
        """

    @requests("run_function")
    def run_function(
        self,
        function: str,
        kwargs: Mapping[str, Any] | str | None = None,
        *,
        raise_on_error: bool = False,
        call_id: str | None = None,
        expected_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Envelope:
        """Run a function on the session's environment.

        Args:
            function: Name of the function.
            kwargs: Arguments of the function: an object, or its JSON text as in a model's tool call. A value that
                is exactly {"$call": {"function": …, "args": {…}}} is a nested call: it runs first, and its result
                replaces it.
            raise_on_error: Answer a failed call with a JSON-RPC error. Default: with an envelope that has the
                error.
            call_id: Idempotency key, chosen by the client, which makes the call safe to retry. If a call with it is
                recorded, its result is returned and nothing runs.
            expected_version: Refuse the call unless the session is at this version. Default: any version.
            timeout_seconds: Timeout of the call in seconds. It can only shorten the function's own timeout.
        """

    @requests("get_task")
    def get_task(self) -> AgentTask:
        """Return the agent's prompt, and how many calls it has used. Without a task, the result has no prompt."""

    @requests("submit_answer")
    def submit_answer(self, answer: str = "", *, call_id: str | None = None) -> bool:
        """Submit the agent's answer. It ends the agent's part: the agent can make no more calls.

        Args:
            answer: The answer, for the evaluator.
            call_id: Idempotency key of this answer. Without one, an equal answer is taken for a retry; with one,
                only an answer with the same call_id is.
        """

    @requests("say")
    def say(self, text: str, *, to: str | None = None, call_id: str | None = None) -> bool:
        """Send a message to another participant, or to all others.

        Args:
            text: The message.
            to: The recipient's name; default: all other participants.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
        """

    @requests("listen")
    def listen(self, *, after: int = -1, wait_seconds: float = 0) -> HeardMessages:
        """Return the messages that you sent and received, in order; wait for a message of another participant.

        Args:
            after: The index of the last message that you have; default: all messages.
            wait_seconds: How long to wait for a message of another participant.
        """


class ClientMethods:
    """The methods, with their parameters and results; the server's OpenRPC document describes each."""

    @requests("create_session")
    def create_session(
        self,
        toolpacks: Sequence[str] | None = None,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        labels: Mapping[str, str] | None = None,
        call_id: str | None = None,
        task: str | None = None,
        seed: str | None = None,
        clock: str | None = None,
        clock_step_seconds: float | None = None,
        participants: Mapping[str, Any] | None = None,
        perturbations: Perturbations | None = None,
    ) -> Session:
        """Create a session: private environments of the chosen toolpacks.

        Args:
            toolpacks: Names of the toolpacks. Default: all except opt_in ones.
            options: Options by toolpack.
            environment: Initial environments as JSON, by toolpack. Default: the toolpacks' own.
            ttl_seconds: Time to live after the session's last call, in seconds.
            labels: Labels by which sessions are found and closed.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
            task: A task, as toolpack/name. The session gets its toolpacks and options; the parameter `options`
                overrides them, and `toolpacks` adds further ones.
            seed: What its functions draw random numbers from, so that they draw the same again.
            clock: The time that its functions see at the start, RFC 3339 with an offset.
            clock_step_seconds: How far each call moves the clock on; default: 1.
            participants: Participants and their rights: {name: {functions, max_calls, prompt, answers}}. Merged
                with those of the task; the values given here win.
            perturbations: Rules that inject faults and texts into the agent's calls; default: none.
        """

    @requests("list_toolpacks")
    def list_toolpacks(self) -> list[ToolpackDescription]:
        """List the loaded toolpacks with their options, environments and functions."""

    @requests("list_functions")
    def list_functions(
        self,
        session_id: str | None = None,
        *,
        format: Literal["native", "openai", "anthropic", "gemini", "mcp"] = "native",
    ) -> FunctionList:
        """List a session's functions in registration order. Without a session, list all loaded functions.

        Args:
            session_id: The session. Default: all loaded functions.
            format: Format of the function descriptions.
        """

    @requests("run_function")
    def run_function(
        self,
        session_id: str,
        function: str,
        kwargs: Mapping[str, Any] | str | None = None,
        *,
        raise_on_error: bool = False,
        call_id: str | None = None,
        expected_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Envelope:
        """Run a function on a session's environment. Calls are atomic, run one at a time, and run once per call_id.

        Args:
            function: Name of the function.
            kwargs: Arguments of the function: an object, or its JSON text as in a model's tool call. A value that
                is exactly {"$call": {"function": …, "args": {…}}} is a nested call: it runs first, and its result
                replaces it.
            raise_on_error: Answer a failed call with a JSON-RPC error. Default: with an envelope that has the
                error.
            call_id: Idempotency key, chosen by the client, which makes the call safe to retry. If a call with it is
                recorded, its result is returned and nothing runs.
            expected_version: Refuse the call unless the session is at this version. Default: any version.
            timeout_seconds: Timeout of the call in seconds. It can only shorten the function's own timeout.
        """

    @requests("get_session")
    def get_session(self, session_id: str) -> Session:
        """Return the description of a session."""

    @requests("get_environment")
    def get_environment(
        self,
        session_id: str,
        *,
        version: int | None = None,
        pointer: str = "",
        after: str | None = None,
        limit: int | None = None,
        format: Literal["json", "snapshot"] = "json",
    ) -> Any | Export:
        """Return a session's environments by toolpack, as JSON or as an exact snapshot.

        Args:
            version: The version. Default: the current one.
            pointer: JSON Pointer (RFC 6901) to the part to return. Default: everything.
            after: Return the rows after this key. Only if the pointer names a table of a database.
            limit: Maximum number of rows. Only if the pointer names a table of a database. Default: 100 with
                `after`. Without both, the whole table, or only its number of rows if it is large.
            format: `snapshot` returns the exact environments as bytes, for a client that has the same classes and
                trusts the server.
        """

    @requests("diff_environment")
    def diff_environment(
        self,
        session_id: str,
        *,
        from_version: int | None = None,
        to_version: int | None = None,
        to_session_id: str | None = None,
        text_diffs: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the JSON Patch (RFC 6902) between the environments of two versions, of one session or two.

        Args:
            from_version: The version to start from. Default: 0, or the current one with to_session_id.
            to_version: The version to end with. Default: the current one.
            to_session_id: The session to end with. Default: the same session.
            text_diffs: Show changed text files as unified diffs.
        """

    @requests("get_trace")
    def get_trace(
        self,
        session_id: str,
        *,
        after: int = -1,
        limit: int = 100,
        path: bool = False,
    ) -> list[
        CallRecord
        | ResetRecord
        | MessageRecord
        | AnswerRecord
        | VerdictRecord
        | TurnRecord
        | FailureRecord
        | dict[str, Any]
    ]:
        """Return a session's records, in order.

        Args:
            after: Return the records after this index. With `path`, it is the position on the path. Default: from
                the first record.
            limit: The maximum number of results.
            path: Return only the path: the records that led to the current version, including those of the sessions
                that this one was forked from.
        """

    @requests("fork_session")
    def fork_session(
        self,
        session_id: str,
        *,
        version: int | None = None,
        count: int = 1,
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        call_id: str | None = None,
        seed: str | None = None,
        clock: str | None = None,
        clock_step_seconds: float | None = None,
        perturbations: Perturbations | None = None,
    ) -> list[Session]:
        """Create sessions that start from a version of this one.

        Args:
            version: The version to fork. Default: the current one.
            count: Number of forks.
            labels: Labels of the forks. Default: the session's labels.
            ttl_seconds: Time to live after the session's last call, in seconds.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
            seed: What its functions draw random numbers from, so that they draw the same again.
            clock: The time that its functions see at the start, RFC 3339 with an offset.
            clock_step_seconds: How far each call moves the clock on; default: 1.
            perturbations: Rules for the forks; default: the parent's rules. An object without rules: none.
        """

    @requests("reset_session")
    def reset_session(self, session_id: str, *, version: int = 0, call_id: str | None = None) -> Session:
        """Commit a new version with the content of an older one.

        Args:
            version: The older version.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
        """

    @requests("close_session", repeatable=False)
    def close_session(self, session_id: str | None = None, *, labels: Mapping[str, str] | None = None) -> int:
        """Close a session, or all with these labels, and delete data that no fork needs. Return the number of sessions.

        Args:
            labels: Instead of session_id: close the sessions that have all these labels.
        """

    @requests("list_sessions")
    def list_sessions(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        after: str = "",
        limit: int = 100,
        parent: str | None = None,
        order: Literal["id", "-created"] = "id",
        passed: bool | None = None,
    ) -> list[Session]:
        """List the caller's sessions, sorted by session_id or by creation time.

        Args:
            labels: List only the sessions that have all these labels.
            after: List the sessions after this session_id. Default: from the first session.
            limit: The maximum number of results.
            parent: List only the forks of this session.
            order: `id` sorts by session_id, `-created` by creation time, newest first.
            passed: List only sessions whose last record is a verdict with this `passed`.
        """

    @requests("rpc.discover")
    def discover(self) -> dict[str, Any]:
        """Return the OpenRPC document of this server."""

    @requests("list_tasks")
    def list_tasks(
        self,
        *,
        toolpack: str | None = None,
        split: str | None = None,
        tags: Sequence[str] | None = None,
        after: int = -1,
        limit: int = 100,
    ) -> TaskPage:
        """List tasks, in a fixed order.

        Args:
            toolpack: List only tasks of this toolpack.
            split: List only tasks of this split.
            tags: List only tasks that have all these tags.
            after: List the tasks after this index; default: from the first.
            limit: The maximum number of results.
        """

    @requests("get_task")
    def get_task(self, task: str) -> TaskDescription:
        """Describe a task.

        Args:
            task: The task, as toolpack/name.
        """

    @requests("add_message")
    def add_message(
        self,
        session_id: str,
        role: Literal["system", "user", "assistant"],
        content: str,
        *,
        call_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> bool:
        """Record a message of the conversation, for evaluators and trajectories.

        Args:
            role: The role of the sender.
            content: The text of the message.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
            metadata: Further data of the message for trajectories, such as model_name, prompt_tokens or
                completion_token_ids.
        """

    @requests("submit_answer")
    def submit_answer(self, session_id: str, answer: str = "", *, call_id: str | None = None) -> bool:
        """Submit the agent's answer in a session with a task. It ends the agent's part.

        Args:
            answer: The answer, for the evaluator.
            call_id: Idempotency key of this answer. Without one, an equal answer is taken for a retry; with one,
                only an answer with the same call_id is.
        """

    @requests("evaluate_session")
    def evaluate_session(
        self,
        session_id: str,
        *,
        task: str | None = None,
        version: int | None = None,
        answer: str | None = None,
        record: bool = False,
        raise_on_error: bool = True,
        ends: bool = False,
    ) -> Verdict:
        """Evaluate a session with the evaluator of its task; return the reward and whether it passed.

        Args:
            task: A task of one of the session's toolpacks; default: the session's task.
            version: The version to evaluate; default: the current one.
            answer: The answer to evaluate; default: the recorded one.
            record: Store the verdict as a record of the session, for list_sessions.
            raise_on_error: If no reward can be computed, answer with a JSON-RPC error; otherwise with a verdict
                that isn't valid.
            ends: End the agent's part with the recorded verdict, as an answer does. Requires `record`.
        """

    @requests("summarize_sessions")
    def summarize_sessions(
        self,
        labels: Mapping[str, str] | None = None,
        *,
        after: str = "",
        limit: int = 1000,
        order: Literal[
            "id",
            "-id",
            "created",
            "-created",
            "task",
            "-task",
            "parent",
            "-parent",
            "verdict",
            "-verdict",
            "calls",
            "-calls",
            "last",
            "-last",
            "done",
            "-done",
            "version",
            "-version",
        ] = "id",
        text: str = "",
        known: str | None = None,
        total: bool = False,
        evaluate: bool = False,
        record: bool = False,
    ) -> SessionSummaries:
        """List sessions with a summary of each and its verdict, and with the pass rates of their tasks.

        Args:
            labels: List only sessions that have all these labels.
            after: List the sessions after this session_id: `next` of the last page; default: from the first.
            limit: The maximum number of sessions.
            order: Sort by id, created, task, parent, verdict, calls, last, done or version; `-` means descending.
            text: List only sessions with this text in id, task, labels or trace. Case is ignored.
            known: The `digest` of your last answer: if nothing has changed, the answer has no sessions. Send the
                empty text to get a first digest.
            total: Also count all matching sessions; this reads all of them.
            evaluate: Evaluate each session that has a task; default: return the recorded verdict, if any.
            record: Store each verdict of `evaluate` as evaluate_session does.
        """

    @requests("get_solution")
    def get_solution(self, session_id: str) -> Solution:
        """Get one way to do the session's task, as calls that run_function takes."""

    @requests("replay_session")
    def replay_session(
        self,
        session_id: str,
        *,
        limit: int = 1000,
        labels: Mapping[str, str] | None = None,
        call_id: str | None = None,
    ) -> Replay:
        """Run a session's records again, in order, in a new session, up to the first that comes out differently.

        Args:
            limit: How many records to run again, at most.
            labels: The labels of the new session; default: this session's.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
        """

    @requests("export_bundle")
    def export_bundle(self, session_id: str, *, versions: Literal["all", "ends"] = "all") -> Bundle:
        """Get a session as one file, which `import_bundle` takes here or on another server.

        Args:
            versions: The versions in it: all that are kept, or the first and the current one.
        """

    @requests("import_bundle")
    def import_bundle(
        self,
        bundle: str,
        *,
        mode: Literal["exact", "replay"] = "exact",
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        limit: int = 1000,
        call_id: str | None = None,
    ) -> Session | Replay:
        """Create a session from a bundle: exactly the one that was exported, or by running its records again.

        Args:
            bundle: What `export_bundle` gave, in base64.
            mode: `replay` takes bundles of strangers: nothing but arguments is used, and then compared.
            labels: The labels of the session; default: those in the bundle.
            ttl_seconds: Time to live after the session's last call, in seconds.
            limit: How many records to run again, at most, with `replay`.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
        """

    @requests("add_turn")
    def add_turn(
        self,
        session_id: str,
        participant: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        problem: str | None = None,
        call_id: str | None = None,
    ) -> bool:
        """Record a turn of a model that plays a participant: what it used, and why its answer was discarded, if it was.

        Args:
            participant: The participant's name.
            metadata: Facts about the turn: model_name, prompt_tokens, completion_tokens and so on.
            problem: Why the model's answer was discarded; default: it was used.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
        """

    @requests("fail_participant")
    def fail_participant(
        self,
        session_id: str,
        participant: str,
        reason: str,
        *,
        message: str = "",
        call_id: str | None = None,
    ) -> bool:
        """Record that a participant failed. This ends the session for all participants, and its verdicts are invalid.

        Args:
            participant: The participant's name.
            reason: A short name for the cause.
            message: Details for a reader.
            call_id: Idempotency key, chosen by the client. A repeated request with it returns the first answer and
                does nothing twice.
        """
