"""What waits for something to be done in a thread, and what has its turn in a session's mailbox.

The rule: a job's `run` writes down what comes of it, and `complete`, which only a job that kept its deadline comes to,
makes that its answer. So a thread that overran can't change an answer any more.
"""

import asyncio
import logging
import time
from typing import Any, Protocol

from server.errors import CallError, RequestError, StateDamagedError
from server.session_cache import CachedSession
from server.stores import Commit, MissingBlobError
from server.threads import Interrupted, Job

log = logging.getLogger("toolpack_server")


class InternalError(Exception):
    """Something that should not happen did; the log has it, the caller gets this sentence."""

    def __init__(self) -> None:
        super().__init__("The server failed to do this, and has logged why.")


class Task(Job):
    """A job that somebody waits for.

    Attributes:
        answer: What the waiter gets.
        error: The exception that the waiter gets instead.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None
        self._raised: BaseException | None = None

    def run(self) -> None:
        """Do the work, and keep what comes of it."""
        try:
            self.work()
        except Interrupted:
            raise
        except (RequestError, CallError, asyncio.CancelledError) as error:
            self._raised = error
        except MissingBlobError:
            self._raised = StateDamagedError(
                "A snapshot of the session is missing from the store: restore it, or reset the session."
            )
        except BaseException:  # SystemExit too: it must not end the thread that leads
            log.exception("A request failed")
            self._raised = InternalError()

    def work(self) -> None:
        """Do the work; may raise."""
        raise NotImplementedError

    def complete(self) -> bool:
        """See `Job.complete`."""
        self.error = self._raised
        return True

    def deliver(self) -> None:
        """Answer the waiter, if there still is one; called on the event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class Turns(Protocol):
    """What a job asks of the mailboxes."""

    def enter(self, job: "SessionJob") -> CachedSession | None:
        """Get the state of a job's session as of its turn; None where the session's lease has to be waited for."""

    def completed(self, job: "SessionJob") -> bool:
        """Move a job's session on, unless its lease has to be waited for; called under the lock."""


class SessionJob(Task):
    """A job that has its turn in a session's mailbox.

    Attributes:
        alone: It reads the store for what earlier jobs have done, so it starts after their commits.
        entry: The session's cached state, from `run` on.
        commit: What is to be committed; made when the job is completed.
        kept: The commit is in the store.
    """

    alone = False

    def __init__(self, mailboxes: Turns, session_id: str, owner: str | None) -> None:
        super().__init__()
        self.mailboxes = mailboxes
        self.session_id = session_id
        self.owner = owner
        self.arrived = time.monotonic()
        self.entry: CachedSession | None = None
        self.commit: Commit | None = None
        self.kept = False

    def work(self) -> None:
        """Enter the session, then do what there is to do in it."""
        self.entry = self.mailboxes.enter(self)
        if self.entry is not None:
            self.work_in(self.entry)

    def work_in(self, entry: CachedSession) -> None:
        """Do the work; may raise. What is kept of it is said by `settle`."""
        raise NotImplementedError

    def settle(self, entry: CachedSession, *, release: bool) -> Commit | None:
        """Move the session's cached state on, and get what is to be committed."""
        raise NotImplementedError

    def complete(self) -> bool:
        """See `Job.complete`."""
        super().complete()
        return self.mailboxes.completed(self)

    def overrun(self) -> None:
        """See `Job.overrun`."""
        self.give_up()
        self.mailboxes.completed(self)

    def give_up(self) -> None:
        """Replace what the job was to do by what its overrunning means."""
        raise NotImplementedError
