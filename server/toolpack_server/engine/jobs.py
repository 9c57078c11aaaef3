"""Jobs: work that a thread does while a caller awaits the answer, such as an operation on a session.

`run` only stores the result of the work, and `complete` makes that result the answer. A job is completed once. So if
its deadline has passed, a thread that still runs it can't change the answer.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, Literal, Protocol

from toolpack_server.base.errors import (
    CallError,
    DeadlineError,
    HeavyReadError,
    InternalError,
    Interrupted,
    MissingBlobError,
    RequestError,
    RpcRefusedError,
    StateDamagedError,
    without_frames,
)
from toolpack_server.base.logger import log
from toolpack_server.base.thread_labels import label_of
from toolpack_server.engine.state import Effect, SessionState
from toolpack_server.functions.shared_loop import SharedCall
from toolpack_server.functions.steps import Awaiting, Steps

NOTHING_CHANGED = "nothing has changed"

LaneName = Literal["functions", "reads", "authors"]


class StartClock(Protocol):
    """Function that sets the deadline of the running job.

    Args:
        seconds: Time from now to the deadline.
        stuck_after: Time from now until a thread that still runs the job counts as stuck.
    """

    def __call__(self, seconds: float, stuck_after: float = ...) -> None: ...


class OperationTracer(Protocol):
    """Receiver of the stages of an operation. Its methods are called from any thread and must be fast."""

    def runs(self) -> None:
        """Handle the start of the operation. Called in the operation's `contextvars` context."""

    def has_run(self) -> None:
        """Handle the end of the operation, before its commit."""

    def committed(self, began: int) -> None:
        """Handle the end of the operation's commit. `began` is its start in nanoseconds since the epoch."""


class Operation(Protocol):
    """Work in a session, which runs in the session's order of operations."""

    session_id: str
    owner: str  # the owner that the session must have
    kind: str  # operations of one kind take about the same time
    lane: LaneName  # limits the operation unless its kind is known to be quick
    after_commits: bool  # start after the commits of earlier operations, because this one reads the store
    # The caller has cancelled it. It then changes nothing and leaves no record, unless it is already committed.
    cancelled: bool

    @property
    def trace(self) -> OperationTracer | None:
        """The receiver of the operation's stages, if any."""

    def steps(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Run the operation in threads; may block.

        Raises:
            RequestError: The operation is refused. Nothing has changed.
        """

    def on_timeout(self, state: SessionState) -> Effect:
        """Return the effect of a missed deadline. `steps` may still be running. Must be fast: called under a lock.

        Raises:
            RequestError: The answer to the caller, without any effect.
        """

    def link_timeout_error(self, error: Exception | None) -> Exception:
        """Return the caller's error if an operation that had to run before this one missed its deadline.

        Both are links of one chain; see `SessionJob`. Must be fast, as `on_timeout`.

        Args:
            error: The error of the other operation; None if that operation has a record of it.
        """

    def ended_unheard(self) -> None:
        """Handle the end of the operation, after its commit, if its caller has stopped waiting."""


class Job:
    """Work on a thread, with an optional deadline and the future of its answer.

    Create a job on the event loop of its caller. The package's docstring describes the states of a job.
    """

    # The lane that limits the job unless its kind is known to be quick. None: the job is always quick.
    lane: LaneName | None = None
    kind: str = ""  # jobs of one kind take about the same time
    owner: str = ""
    in_lane: bool = False  # the job uses or has used capacity of its lane, or waits for it
    deadline: float | None = None  # on the monotonic clock; None: not set yet
    # Time on the monotonic clock. A thread that still runs the job after it counts as stuck.
    stuck_from: float = float("inf")
    awaiting: Awaiting | None = None  # the coroutine that must end before the job goes on
    call: SharedCall | None = None  # the coroutine's call on a shared loop, if it was given to one
    # When the coroutine was given to the loop; after its end, when it ended. On the monotonic clock; 0: not awaited.
    coroutine_time: float = 0.0
    awaited_seconds: float = 0.0  # duration of the coroutine on the loop
    held_up: bool = False  # another call blocks the coroutine's loop, so that loop was abandoned
    waits_for = "a thread"  # for the error message of a job that waited too long
    left_behind: bool = False  # the job has missed its deadline and still runs

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.context = Context()  # all steps of the job run in it, without the context variables of other jobs
        self.arrived = time.monotonic()
        self.answer: Any = None
        self.error: Exception | None = None
        self.returned: Any = None
        self._raised: Exception | None = None

    def is_cancelled(self) -> bool:
        return False

    def is_over(self, now: float) -> bool:
        """Return whether a running job has missed its deadline or was cancelled.

        Return False as long as the job has no deadline, even if it was cancelled: `start_clock` checks that itself.
        """
        return self.deadline is not None and (now > self.deadline or self.is_cancelled())

    def start_clock(self, seconds: float, stuck_after: float = float("inf")) -> None:
        """Set the deadline of the running job; see `StartClock`."""
        now = time.monotonic()
        self.deadline, self.stuck_from = now + seconds, now + stuck_after

    def run(self) -> None:
        """Do the work and store its result. Called on the job's thread, without a lock."""
        try:
            self.returned = self.context.run(self.work)
        except Interrupted:  # the interrupter has completed the job; this thread must end
            raise
        except (RequestError, CallError, HeavyReadError, RpcRefusedError) as error:
            self._raised = without_frames(error)
        except MissingBlobError as missing:
            try:
                self._raised = without_frames(self.why_missing(missing))
            except RequestError as error:  # `why_missing` reads the store, which may refuse
                self._raised = without_frames(error)
        except BaseException:  # SystemExit, too, which must not end the thread
            log.exception("A request failed")
            self._raised = InternalError()

    def work(self) -> Any:
        """Do the work, and return its result. May block and raise.

        To wait for a coroutine, set `awaiting` and return. When the coroutine has ended, `work` is called again, and
        `call` has the coroutine's result.
        """
        raise NotImplementedError

    def weight(self) -> int:
        """Return the estimated memory of the job in bytes while it waits."""
        return 0

    def drop(self) -> None:
        """Close the coroutine and the remaining steps of an abandoned job."""

    def why_missing(self, missing: MissingBlobError) -> RequestError:  # noqa: ARG002 - a subclass uses it
        """Return the error for missing blobs. May access the store."""
        return StateDamagedError(
            "A snapshot of the session is missing from the store: restore it, or reset the session."
        )

    def complete(self, *, timed_out: bool) -> bool:
        """Make the result of `run` the answer. Return whether the job is done; if not, it is submitted again later.

        Called once for each run, under the lock. Must be fast and must not raise.

        Args:
            timed_out: Ignore the result of `run`, which may still be running.
        """
        raise NotImplementedError

    def ended(self) -> None:
        """Handle the end of work that went on after the deadline. Called under the lock; must be fast."""

    def ended_unheard(self) -> None:
        """Handle the end of a job whose caller has stopped waiting. Called on the event loop."""

    def deliver(self) -> None:
        """Answer the caller, unless it has stopped waiting. Called on the event loop."""
        if self.future.done():
            self.ended_unheard()
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)

    def refuse(self, error: Exception) -> None:
        """Answer a job that hasn't run, or will never be committed, with an error. Callable from any thread."""
        self.error = error
        deliver([self])


def deliver(jobs: Sequence[Job]) -> None:
    """Answer the callers of jobs on their event loops. Callable from any thread."""
    # One wake-up for each event loop, because each is a system call.
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, its_jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(deliver_here, its_jobs)
        except RuntimeError:  # the event loop is closed, so no caller waits
            log.debug("%d answers had no receiver", len(its_jobs))


def deliver_here(jobs: Sequence[Job]) -> None:
    """Answer the callers of jobs. Call this on their event loop."""
    for job in jobs:
        job.deliver()


def deadline_error(thread: int, seconds: float, effect_text: str = NOTHING_CHANGED) -> DeadlineError:
    """Return the error of a missed deadline, with the label of the code that the thread was running.

    Args:
        effect_text: The end of the message. It says whether the work may have taken effect.
    """
    label = label_of(thread) or "The request"
    return DeadlineError(f"{label} took longer than {seconds:g} s and was given up; {effect_text}.")


class ThreadJob(Job):
    """Work on the store or on an environment, outside of the sessions' queues.

    Args:
        effect_text: The end of the error after a missed deadline. It says whether the work may have taken effect.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        timeout_seconds: float,
        lane: LaneName | None = None,
        kind: str = "",
        owner: str = "",
        effect_text: str = NOTHING_CHANGED,
    ) -> None:
        super().__init__()
        self.lane, self.kind, self.owner = lane, kind, owner
        self._work = work
        self._timeout_seconds = timeout_seconds
        self._thread = 0
        self._effect_text = effect_text

    def work(self) -> Any:
        self._thread = threading.get_ident()
        # A job without a lane only accesses the store. Its thread never counts as stuck, because the store is slow.
        self.start_clock(self._timeout_seconds, self._timeout_seconds if self.lane else float("inf"))
        return self._work()

    def begin_change(self, effect_text: str) -> None:
        """Set the text for a deadline that is missed from here on. The work calls this before it changes anything.

        Raises:
            DeadlineError: The deadline was missed already, and the caller's error has the earlier text.
        """
        # Before the check: if the watcher has still read the old text, the deadline has passed, and the check raises.
        self._effect_text = effect_text
        if self.is_over(time.monotonic()):
            raise deadline_error(self._thread, self._timeout_seconds, effect_text)

    def complete(self, *, timed_out: bool) -> bool:
        if timed_out:
            self.error = deadline_error(self._thread, self._timeout_seconds, self._effect_text)
        else:
            self.answer, self.error = self.returned, self._raised
        return True
