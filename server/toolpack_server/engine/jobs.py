"""What runs on a thread while somebody waits for it: operations on sessions, and other work that blocks.

`run` only notes its result, and `complete` makes that the answer. A thread that has passed its deadline can
therefore no longer change an answer.
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
    """Starts the deadline of the running job, in seconds from now; after `stuck_after` its thread counts as stuck."""

    def __call__(self, seconds: float, stuck_after: float = ...) -> None: ...


class OperationTracer(Protocol):
    """Is told how far an operation is; brief, and from any thread."""

    def runs(self) -> None:
        """Note that it begins to run, in the context in which it runs."""

    def has_run(self) -> None: ...

    def committed(self, began: int) -> None:
        """Note that its commit, which began then, in nanoseconds since the epoch, has ended."""


class Operation(Protocol):
    """Something to do in a session, when its turn has come."""

    session_id: str
    owner: str  # the owner that the session must have
    kind: str  # operations of one kind take about the same time
    lane: LaneName  # that limits it unless its kind is known to be quick
    after_commits: bool  # it reads from the store what earlier operations have done, so it starts after their commits
    # Nobody wants it any more. It changes nothing and leaves no record, unless that is committed already.
    cancelled: bool

    @property
    def trace(self) -> OperationTracer | None:
        """Who is told how far it is; None if nobody wants to know."""

    def steps(self, state: SessionState, start_clock: StartClock) -> Steps[Effect]:
        """Do the work, in threads; may block. A `RequestError` refuses it: nothing has changed."""

    def on_timeout(self, state: SessionState) -> Effect:
        """Get the result of having passed the deadline. `steps` may still be running. Brief: called under a lock.

        Raises:
            RequestError: That is the answer.
        """


class Job:
    """Something to do on a thread, with an optional deadline, and whoever waits for its answer.

    Created on the event loop of the waiter. The package's docstring tells its life.
    """

    # The lane that limits it unless its kind is known to be quick; None for what is always quick.
    lane: LaneName | None = None
    kind: str = ""  # jobs of one kind take about the same time
    owner: str = ""
    in_lane: bool = False  # it has or had a place in its lane, or waits for one
    deadline: float | None = None  # when, on the monotonic clock, it has taken too long; None while no clock runs
    # From when on its thread counts as stuck, if it has passed its deadline and still runs.
    stuck_from: float = float("inf")
    awaiting: Awaiting | None = None  # the coroutine that it has to wait for before it goes on
    call: SharedCall | None = None  # the one for which it waits, or has waited
    settled_at: float = 0.0  # when that ended, or was handed over and given back, on the monotonic clock
    awaited_seconds: float = 0.0  # for how long it has waited for that
    held_up: bool = False  # the loop on which it waits is blocked by another call, and was given up
    waits_for = "a thread"
    left_behind: bool = False  # it has passed its deadline and still runs

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.context = Context()  # in which it runs, all its steps: it meets no context variable of another job
        self.arrived = time.monotonic()  # when it came, on the monotonic clock
        self.answer: Any = None
        self.error: Exception | None = None
        self._returned: Any = None
        self._raised: Exception | None = None

    def is_cancelled(self) -> bool:
        return False

    def is_over(self, now: float) -> bool:
        """Whether the job, which runs, has passed its deadline or was cancelled.

        Before its clock has started it isn't cancelled by others: then it looks itself, in `start_clock`.
        """
        return self.deadline is not None and (now > self.deadline or self.is_cancelled())

    def start_clock(self, seconds: float, stuck_after: float = float("inf")) -> None:
        now = time.monotonic()
        self.deadline, self.stuck_from = now + seconds, now + stuck_after

    def run(self) -> None:
        """Do the work, and note its result. Called on the job's thread, without a lock."""
        try:
            self._returned = self.context.run(self.work)
        except Interrupted:  # the job has been completed by whoever has interrupted it; this thread is to end
            raise
        except (RequestError, CallError, HeavyReadError, RpcRefusedError) as error:
            self._raised = without_frames(error)
        except MissingBlobError as missing:
            try:
                self._raised = without_frames(self.why_missing(missing))
            except RequestError as error:  # of the store, which was asked once more
                self._raised = without_frames(error)
        except BaseException:  # SystemExit too: it must not end the thread
            log.exception("A request failed")
            self._raised = InternalError()

    def work(self) -> Any:
        """Do the work; may block and raise. If it has to wait for a coroutine it sets `awaiting`, and is called again.

        Then `call` says what came of the coroutine.
        """
        raise NotImplementedError

    def weight(self) -> int:
        """Estimate the memory that it holds while it waits, in bytes."""
        return 0

    def drop(self) -> None:
        """Forget what is left of the work: nobody wants it any more."""

    def why_missing(self, missing: MissingBlobError) -> RequestError:  # noqa: ARG002 - a subclass uses it
        """Say why blobs that the work needs are missing; may ask the store."""
        return StateDamagedError(
            "A snapshot of the session is missing from the store: restore it, or reset the session."
        )

    def complete(self, *, timed_out: bool) -> bool:
        """Make what `run` has noted the answer, and say if the job is done; if not, it is submitted again at some time.

        Called once for each run, under the lock: brief, and must not raise. If it has timed out, what `run` does or has
        done doesn't count.
        """
        raise NotImplementedError

    def ended(self) -> None:
        """Note that the run of a job that was left behind has ended. Called under the lock: brief."""

    def deliver(self) -> None:
        """Answer the waiter, if there still is one; called on the event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)

    def refuse(self, error: Exception) -> None:
        """Answer what hasn't run, or will never be committed, with an error; from any thread."""
        self.error = error
        deliver([self])


def deliver(jobs: Sequence[Job]) -> None:
    """Answer the waiters of jobs on their event loops, from any thread."""
    # All of a batch at once: each wake-up of an event loop is a system call.
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, its_jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(deliver_here, its_jobs)
        except RuntimeError:  # the event loop is closed: nobody waits any more
            log.debug("%d answers had no receiver", len(its_jobs))


def deliver_here(jobs: Sequence[Job]) -> None:
    """Answer the waiters of jobs, on the event loop that all of them wait on."""
    for job in jobs:
        job.deliver()


def deadline_error(thread: int, seconds: float, known: str = NOTHING_CHANGED) -> DeadlineError:
    """Return the error of a missed deadline, which says what the thread was running."""
    what = label_of(thread) or "The request"
    return DeadlineError(f"{what} took longer than {seconds:g} s and was given up; {known}.")


class ThreadJob(Job):
    """Work on the store or on an environment that has no turn in a session's queue.

    Args:
        known: What is known when it has missed its deadline, at the end of a sentence.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        timeout_seconds: float,
        lane: LaneName | None = None,
        kind: str = "",
        owner: str = "",
        known: str = NOTHING_CHANGED,
    ) -> None:
        super().__init__()
        self.lane, self.kind, self.owner = lane, kind, owner
        self._work = work
        self._timeout_seconds = timeout_seconds
        self._thread = 0
        self._known = known

    def work(self) -> Any:
        self._thread = threading.get_ident()
        # Without a lane it only asks the store, and what keeps that waiting isn't this worker's thread.
        self.start_clock(self._timeout_seconds, self._timeout_seconds if self.lane else float("inf"))
        return self._work()

    def begin_change(self, known: str) -> None:
        """Say what is known from here on when the deadline is missed; called by the work, before it changes anything.

        Raises:
            DeadlineError: It was missed, and the waiter has heard what was known before.
        """
        self._known = known  # first: whoever still reads what was known has seen the deadline pass
        if self.is_over(time.monotonic()):
            raise deadline_error(self._thread, self._timeout_seconds, known)

    def complete(self, *, timed_out: bool) -> bool:
        if timed_out:
            self.error = deadline_error(self._thread, self._timeout_seconds, self._known)
        else:
            self.answer, self.error = self._returned, self._raised
        return True
