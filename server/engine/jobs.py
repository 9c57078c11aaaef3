"""What runs on a thread while somebody waits for it: operations on sessions, and other work that blocks.

The rule: `run` only notes its result, and `complete` makes that the answer. A thread that has passed its deadline can
therefore no longer change an answer.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from server.engine.lanes import Job, Lane
from server.engine.state import CLOSED, Result, SessionState
from server.errors import (
    CallError,
    DeadlineError,
    HeavyReadError,
    InternalError,
    Interrupted,
    MissingBlobError,
    OverloadedError,
    RequestError,
    SessionNotFoundError,
    StateDamagedError,
)
from server.stores.base import Commit

log = logging.getLogger("toolpack_server")

CANCELLED = "The call was cancelled; nothing was changed."
NOT_KEPT = "The call before this one could not be kept; nothing was changed. Send it again."


class StartClock(Protocol):
    """Starts the deadline of the running job."""

    def __call__(self, seconds: float, stuck_after: float = ...) -> None:
        """Start it.

        Args:
            seconds: The deadline, from now.
            stuck_after: From when on the job's thread counts as stuck, from now.
        """


class Operation(Protocol):
    """Something to do in a session, when its turn has come.

    Attributes:
        session_id: The session.
        owner: The owner that the session must have.
        kind: Operations of one kind take about the same time.
        after_commits: It reads from the store what earlier operations have done, so it starts after their commits.
        cancelled: Nobody wants it any more. It changes nothing and leaves no record, unless that is committed already.
    """

    session_id: str
    owner: str
    kind: str
    after_commits: bool
    cancelled: bool

    def run(self, state: SessionState, start_clock: StartClock) -> Result:
        """Do the work, in a thread; may block.

        Raises:
            RequestError: It is refused, and nothing has changed.
        """

    def on_timeout(self, state: SessionState) -> Result:
        """Get the result of having passed the deadline. `run` may still be running. Brief: called under a lock.

        Raises:
            RequestError: That is the answer.
        """


class Task(Job):
    """A job that somebody waits for.

    Attributes:
        answer: What the waiter gets.
        error: The exception that the waiter gets instead.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.arrived = time.monotonic()
        self.answer: Any = None
        self.error: Exception | None = None
        self._returned: Any = None
        self._raised: Exception | None = None

    def run(self) -> None:
        """Do the work, and note its result."""
        try:
            self._returned = self.work()
        except Interrupted:
            raise
        except (RequestError, CallError, HeavyReadError) as error:
            self._raised = error
        except MissingBlobError:
            self._raised = StateDamagedError(
                "A snapshot of the session is missing from the store: restore it, or reset the session."
            )
        except BaseException:  # SystemExit too: it must not end the thread
            log.exception("A request failed")
            self._raised = InternalError()

    def work(self) -> Any:
        """Do the work; may raise."""
        raise NotImplementedError

    def start_clock(self, seconds: float, stuck_after: float = float("inf")) -> None:
        """See `StartClock`."""
        now = time.monotonic()
        self.deadline, self.stuck_from = now + seconds, now + stuck_after

    def deliver(self) -> None:
        """Answer the waiter, if there still is one; called on the event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


def deliver(tasks: Sequence[Task]) -> None:
    """Answer the waiters of tasks on their event loops, from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Task]] = {}
    for task in tasks:
        by_loop.setdefault(task.loop, []).append(task)
    for loop, its_tasks in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, its_tasks)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            log.debug("%d answers had no receiver", len(its_tasks))


def refuse(task: Task, why: str) -> None:
    """Refuse what hasn't started, from any thread."""
    task.error = OverloadedError(why)
    deliver([task])


def _deliver(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task.deliver()


class Errand(Task):
    """Work on the store or on an environment that has no turn in a session's queue.

    Args:
        work: The work.
        timeout_seconds: Its deadline.
        given_up: What the waiter is told if it passes that; "": that it may still change something.
        lane: The lane that limits it; None for what is always quick.
        kind: See `Job`.
        name: See `Job`.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        timeout_seconds: float,
        lane: Lane | None = None,
        kind: str = "",
        name: str = "",
        given_up: str = "",
    ) -> None:
        super().__init__()
        self.lane, self.kind, self.name = lane, kind, name
        self._work = work
        self._timeout_seconds = timeout_seconds
        self._given_up = given_up

    def work(self) -> Any:
        """See `Task.work`."""
        self.start_clock(self._timeout_seconds)
        return self._work()

    def complete(self, *, timed_out: bool) -> bool:
        """See `Job.complete`."""
        if timed_out:
            self.error = DeadlineError(
                self._given_up
                or f"The request took longer than {self._timeout_seconds:g} s and was given up. What it was to "
                "change may still change: send it again with the same call_id."
            )
        else:
            self.answer, self.error = self._returned, self._raised
        return True


class Turns(Protocol):
    """What an operation's job needs of the queues."""

    def enter(self, operation: Operation) -> SessionState | None:
        """Get the state of the session as of the operation's turn; None if another worker holds its lease."""

    def leave(self, job: "SessionJob", *, timed_out: bool) -> bool:
        """Apply what a job has done and let the next one start; say if the job is done. Called under the lock."""

    def resume(self, job: "SessionJob") -> None:
        """Let a session go on whose job was left behind and has ended. Called under the lock."""


class SessionJob(Task):
    """An operation in its session's queue.

    Attributes:
        operation: The operation.
        state: The session's state, from `run` on.
        commit: What is to be committed, once the result is applied.
        committed: The commit is in the store.
    """

    shares_processor = True

    def __init__(self, turns: Turns, operation: Operation, lane: Lane) -> None:
        super().__init__()
        self.lane, self.kind, self.name = lane, operation.kind, operation.owner
        self._turns = turns
        self.operation = operation
        self.state: SessionState | None = None
        self.commit: Commit | None = None
        self.committed = False

    def work(self) -> Result | None:
        """Enter the session, then run the operation there."""
        if self.is_cancelled():
            raise OverloadedError(CANCELLED)
        self.state = self._turns.enter(self.operation)
        return self.operation.run(self.state, self.start_clock) if self.state else None

    def start_clock(self, seconds: float, stuck_after: float = float("inf")) -> None:
        """See `StartClock`."""
        super().start_clock(seconds, stuck_after)
        if self.operation.cancelled:
            raise OverloadedError(CANCELLED)

    def is_cancelled(self) -> bool:
        """See `Job.is_cancelled`."""
        return self.operation.cancelled

    def complete(self, *, timed_out: bool) -> bool:
        """See `Job.complete`."""
        return self._turns.leave(self, timed_out=timed_out)

    def ended(self) -> None:
        """See `Job.ended`."""
        self._turns.resume(self)

    def waits_for_lease(self) -> bool:
        """Whether the session couldn't be entered because another worker holds its lease."""
        return self.state is None and self._raised is None

    def apply(self, *, timed_out: bool, release: bool) -> None:
        """Move the session's state on by the operation's result, and note what is to be committed.

        Args:
            timed_out: The operation has passed its deadline.
            release: Give the lease back with the commit.
        """
        state = self.state
        if state is None or (self._raised is not None and not timed_out):
            self.error = self._raised
            return
        if timed_out and self.is_cancelled():  # no record: whoever has cancelled it wants nothing of it
            self.error = OverloadedError(CANCELLED)
            return
        try:
            result: Result = self.operation.on_timeout(state) if timed_out else self._returned
            self.answer = result.answer
            self.commit = state.apply(result, release=release)
        except RequestError as error:
            self.error = error
        except Exception:
            log.exception("The result of a request could not be applied")
            self.error, state.invalid = InternalError(), NOT_KEPT

    def settle(self) -> None:
        """Note how the commit has ended; the error says so where the session's state has become invalid."""
        state = self.state
        if state is None:
            return
        if self.committed and self.commit is not None:
            state.committed(self.commit.record)
        elif state.invalid and not isinstance(self.error, InternalError):
            closed = state.invalid == CLOSED
            self.error = SessionNotFoundError() if closed else OverloadedError(state.invalid)
