"""Jobs: work that a thread does while a caller awaits the answer, such as an operation on a session.

`run` only stores the result of the work, and `complete` turns this result into the answer. A job is completed only
once. So after a missed deadline, a thread that still runs the job can't change the answer.
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
        seconds: Seconds from now to the deadline.
        stuck_after: Seconds from now after which a thread that still runs the job counts as stuck.
    """

    def __call__(self, seconds: float, stuck_after: float = ...) -> None: ...


class OperationTracer(Protocol):
    """Observer that is notified of the stages of an operation.

    Its methods are called from any thread and must be fast.
    """

    def runs(self) -> None:
        """Handle the start of the operation. Called in the operation's `contextvars` context."""

    def has_run(self) -> None:
        """Handle the end of the operation, before its commit."""

    def committed(self, began: int) -> None:
        """Handle the end of the operation's commit. `began` is its start in nanoseconds since the epoch."""


class Operation(Protocol):
    """Work in a session. The operations of one session run in their order of arrival."""

    session_id: str
    owner: str  # the operation is refused if the session has another owner
    kind: str  # label that groups operations of similar duration, used to predict whether the next one is quick
    lane: LaneName  # the lane that limits the operation, unless its kind is known to be quick
    after_commits: bool  # start only after the commits of earlier operations, because this operation reads the store
    # The caller has cancelled the operation, so it must change nothing and leave no record, unless it is committed.
    cancelled: bool

    @property
    def trace(self) -> OperationTracer | None:
        """The observer of the operation's stages, if any."""

    def steps(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Run the operation on a thread. The steps can block.

        Raises:
            RequestError: The operation is refused. Nothing has changed.
        """

    def on_timeout(self, state: SessionState) -> Effect:
        """Return the effect of a missed deadline, while `steps` might still be running.

        Called under a lock, so it must be fast.

        Raises:
            RequestError: The missed deadline has no effect, and this error is the answer to the caller.
        """

    def link_timeout_error(self, error: Exception | None) -> Exception:
        """Return the error for the caller, after an operation that had to run before this one missed its deadline.

        The two operations are links of one chain; see `SessionJob`. Like `on_timeout`, this must be fast.

        Args:
            error: The error of the earlier operation. None: that operation has recorded its missed deadline.
        """

    def ended_unheard(self) -> None:
        """Handle the end of the operation, after its commit, if its caller has stopped waiting."""


class Job:
    """Work on a thread, with an optional deadline and a future for its answer.

    Create a job on the event loop of its caller. The package's docstring describes the states of a job.
    """

    # The lane that limits the job, unless its kind is known to be quick. None: the job is always quick.
    lane: LaneName | None = None
    kind: str = ""  # label that groups jobs of similar duration, used to predict whether the next one is quick
    owner: str = ""
    in_lane: bool = False  # the job uses a slot of its lane, has used one, or waits for one
    deadline: float | None = None  # on the monotonic clock; None: not set yet
    # Time on the monotonic clock after which a thread that still runs the job counts as stuck.
    stuck_from: float = float("inf")
    awaiting: Awaiting | None = None  # the coroutine that must end before the job can continue
    call: SharedCall | None = None  # the coroutine's call on a shared loop; None: no loop has received the coroutine
    # Before the coroutine's end: the time when the loop received it. After its end: the time of the end. On the
    # monotonic clock; 0: the job has awaited no coroutine.
    coroutine_time: float = 0.0
    awaited_seconds: float = 0.0  # duration of the coroutine on the loop
    held_up: bool = False  # the coroutine's loop was abandoned, because another call blocks it
    waits_for = "a thread"  # object of the wait, for the error message of a job that waited too long
    left_behind: bool = False  # the job has missed its deadline but is still running

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.context = Context()  # all steps of the job run in this context, apart from the variables of other jobs
        self.arrived = time.monotonic()
        self.answer: Any = None
        self.error: Exception | None = None
        self.returned: Any = None
        self._raised: Exception | None = None

    def is_cancelled(self) -> bool:
        return False

    def is_over(self, now: float) -> bool:
        """Return whether a running job has missed its deadline or was cancelled.

        Return False as long as the job has no deadline, even if it was cancelled, because `start_clock` checks for
        that.
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
        except Interrupted:  # the watcher has completed the job, so this thread must exit
            raise
        except (RequestError, CallError, HeavyReadError, RpcRefusedError) as error:
            self._raised = without_frames(error)
        except MissingBlobError as missing:
            try:
                self._raised = without_frames(self.why_missing(missing))
            except RequestError as error:  # `why_missing` reads the store, which might be unavailable
                self._raised = without_frames(error)
        except BaseException:  # also SystemExit, which must not end the thread
            log.exception("A request failed")
            self._raised = InternalError()

    def work(self) -> Any:
        """Do the work, and return its result. This can block and raise.

        To wait for a coroutine, the method sets `awaiting` and returns. When the coroutine has ended, `work` is called
        again, and `call` contains the coroutine's result.
        """
        raise NotImplementedError

    def weight(self) -> int:
        """Return the estimated memory of the job in bytes while it waits."""
        return 0

    def drop(self) -> None:
        """Close the coroutine and the remaining steps of an abandoned job."""

    def why_missing(self, missing: MissingBlobError) -> RequestError:  # noqa: ARG002 - a subclass uses it
        """Return the error for missing blobs. This can access the store to find the cause."""
        return StateDamagedError(
            "A snapshot of the session is missing from the store: restore it, or reset the session."
        )

    def complete(self, *, timed_out: bool) -> bool:
        """Turn the result of `run` into the answer. Return False if the job isn't done, but will be submitted again.

        Called once for each run, under the lock, so it must be fast and must not raise.

        Args:
            timed_out: Ignore the result of `run`, because the deadline has passed. `run` might still be running.
        """
        raise NotImplementedError

    def ended(self) -> None:
        """Handle the end of work that continued after the deadline. Called under the lock, so it must be fast."""

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
    # Wake each event loop only once, because each wake-up is a system call.
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
    """Return the error for a missed deadline, with the label of the code that the thread was running.

    Args:
        effect_text: The end of the message, which says whether the work might have taken effect.
    """
    label = label_of(thread) or "The request"
    return DeadlineError(f"{label} took longer than {seconds:g} s and was given up; {effect_text}.")


class ThreadJob(Job):
    """Work on the store or on an environment, outside of the sessions' queues.

    Args:
        effect_text: The end of the error message after a missed deadline, which says whether the work might have taken
            effect.
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
        # A job without a lane only accesses the store. Its thread never counts as stuck, because then the store is
        # slow.
        self.start_clock(self._timeout_seconds, self._timeout_seconds if self.lane else float("inf"))
        return self._work()

    def begin_change(self, effect_text: str) -> None:
        """Replace `effect_text` for a deadline missed from now on. The work calls this before its first change.

        Raises:
            DeadlineError: The deadline has already passed, so the caller's error contains the earlier text.
        """
        # Set the text before the check: if the watcher still reads the old text, the deadline has passed, so the check
        # raises, and the work changes nothing.
        self._effect_text = effect_text
        if self.is_over(time.monotonic()):
            raise deadline_error(self._thread, self._timeout_seconds, effect_text)

    def complete(self, *, timed_out: bool) -> bool:
        if timed_out:
            self.error = deadline_error(self._thread, self._timeout_seconds, self._effect_text)
        else:
            self.answer, self.error = self.returned, self._raised
        return True
