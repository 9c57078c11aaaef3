"""Lanes: limits on the number of slow jobs of one sort that run at once, with queues of the waiting jobs.

No owner uses more than its share of a lane's slots, and owners take turns. So an owner that submits many jobs delays
only its own jobs. Within an owner's share, kinds of jobs also take turns. A lane can have a reserve of slots for kinds
that aren't known to wait, so that these kinds don't queue behind jobs that wait, for example for a web service. A lane
changes only under the lock of the threads.

When a job enters a lane, one of three cases applies:

    its share has a slot          The job is inside, and counts in `taken` and in its share, until it leaves.
    its share has no slot, but    The job runs in the reserve, which isn't counted. If the watcher finds that the job's
      its kind can use the        kind waits, the job takes a slot of its share, even above the maximum.
      reserve
    neither                       The job waits in the queue of its share and kind. When another job leaves, the next
                                  waiting job starts.

A job of a quick kind enters no lane. If it turns out to be slow, it takes a slot while it runs (`occupy`). A job that
has missed its deadline but doesn't end is left behind: other owners can use its slot, but it still counts in its share.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from operator import attrgetter

from toolpack_server.base.settings import Settings
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.pace import Pace

COMPUTING = 2  # maximum number of functions that compute at once; more would only compete for the interpreter
# Maximum number of running jobs in two lanes, for all owners together. One owner can use at most half of a lane, so
# that it can't block other owners.
HEAVY_READS = 2  # reads of much data, each of which keeps the CPU busy until it ends
AUTHORS = 4  # toolpacks' evaluators, loaders and builders, which can compute or wait until their deadline
SPARE_THREADS = 16  # threads for the leader, and for jobs that are always quick unless the store is slow
RESERVE = 16  # slots in the reserve of the functions' lane
RESERVE_PER_KIND = 2
RESERVE_APART = 2  # the value of RESERVE if functions run in other processes
# Number of processes in addition to the slots of the functions' lane: for the reserve and for jobs that have left it,
# for heavy reads, for authors' code, and two for quick functions, which enter no lane.
SPARE_PROCESSES = 2 * RESERVE_APART + HEAVY_READS + AUTHORS + 2

Share = Hashable
"""Key of a share of a lane: an owner, or an owner and one of its functions."""


class Backlog:
    """Number of a worker's waiting jobs, in sessions' queues and in lanes: in total, and by owner.

    The numbers change only under the lock of the threads.
    """

    def __init__(self) -> None:
        self.total = 0
        self.of_owner: Counter[str] = Counter()

    def add(self, owner: str, change: int) -> None:
        self.total += change
        self.of_owner[owner] += change


class Lane:
    """A limited number of slots for jobs, with a queue.

    A job that leaves the reserve counts in its share, even above the share's maximum. Up to the size of the reserve,
    the jobs above a share's maximum don't count in the lane's total, so that they take no slot from other owners.

    Args:
        total: Maximum weight of all jobs inside.
        per_share: Maximum weight of the jobs in one share.
        backlog: Counter of the waiting jobs.
        share: Returns a job's share.
        weigh: Returns a job's weight. By default, each job weighs 1.
    """

    def __init__(
        self,
        total: int,
        per_share: int,
        backlog: Backlog,
        share: Callable[[Job], Share] = attrgetter("owner"),
        weigh: Callable[[Job], int] = lambda _: 1,
    ) -> None:
        self._total = total
        self._per_share = per_share
        self._backlog = backlog
        self._share = share
        self._weigh = weigh
        self._inside: dict[Job, int] = {}
        self._left_behind: set[Job] = set()
        self.taken = 0
        self._running: Counter[Share] = Counter()
        self._beyond = 0  # the part of `taken` that is above the maximum of its share, summed over all shares
        # By share, then by kind, in the order of their turns.
        self._waiting: OrderedDict[Share, OrderedDict[str, deque[Job]]] = OrderedDict()
        self._reserve = 0
        self._may_use_reserve: Callable[[str], bool] = lambda _: False
        self._in_reserve: dict[Job, str] = {}

    def keep_reserve(self, slots: int, may_use: Callable[[str], bool]) -> None:
        """Add a reserve with this number of slots. `may_use` returns whether a kind of job can use the reserve."""
        self._reserve, self._may_use_reserve = slots, may_use

    def enter(self, job: Job) -> bool:
        """Take a slot for a job that should start now. If no slot is free, queue the job and return False."""
        if self._is_inside(job):
            return True
        share = self._share(job)
        # This job overtakes no waiting job: `leave` has started all waiting jobs whose shares have a slot.
        if self._has_slot(share):
            self.occupy(job)
            return True
        # Don't use the reserve if a job of the same kind waits in the same share, because this job would overtake it.
        if job.kind not in self._waiting.get(share, ()) and self._has_reserve(job.kind):
            self._in_reserve[job] = job.kind
            return True
        self._waiting.setdefault(share, OrderedDict()).setdefault(job.kind, deque()).append(job)
        self._backlog.add(job.owner, 1)
        return False

    def occupy(self, job: Job) -> None:
        """Take a slot for a job that is already running, even if no slot is free."""
        if not self._is_inside(job):
            self._take_slot(job)

    def reweigh(self, job: Job) -> None:
        """Compute the weight of a job inside again, because it has changed."""
        self._give_back(job)
        self._take_slot(job)

    def leave(self, job: Job) -> list[Job]:
        """Free the slot of a job that has ended. Return the jobs to start now."""
        if self._in_reserve.pop(job, None) is None:
            if job not in self._inside:
                return []
            self._give_back(job)
        return self._start_waiting()

    def leave_reserve(self, job: Job) -> list[Job]:
        """Move a job from the reserve to a slot of its share, even if no slot is free. Return the jobs to start now."""
        if self._in_reserve.pop(job, None) is None:
            return []
        self.occupy(job)
        return self._start_waiting()

    def leave_behind(self, job: Job) -> list[Job]:
        """Free the slot of a job that might never end, but still count the job in its share.

        Returns:
            The jobs to start now.
        """
        if job not in self._left_behind:
            self._left_behind.add(job)
            self.taken -= self._inside[job]
        return self._start_waiting()

    def release(self, kind: str) -> list[Job]:
        """Remove and return the waiting jobs of a kind that no longer needs a slot."""
        return self._take(lambda waiting_kind, jobs: len(jobs) if waiting_kind == kind else 0)

    def expire(self, before: float) -> list[Job]:
        """Remove and return the waiting jobs that arrived before a time."""
        return self._take(lambda _, jobs: sum(job.arrived < before for job in jobs))

    def _take(self, how_many: Callable[[str, deque[Job]], int]) -> list[Job]:
        """Remove and return the first jobs in the queue of each share and kind.

        Args:
            how_many: Returns the number of jobs to remove from a kind's queue.
        """
        taken = []
        for share, kinds in list(self._waiting.items()):
            for kind, jobs in list(kinds.items()):
                taken += [self._next(share, kind) for _ in range(how_many(kind, jobs))]
        return taken

    def _take_slot(self, job: Job) -> None:
        self._inside[job] = weight = self._weigh(job)
        self._count(self._share(job), weight)

    def _give_back(self, job: Job) -> None:
        """Free a job's slot, and remove the job from its share."""
        weight, share = self._inside.pop(job), self._share(job)
        if job in self._left_behind:
            self._left_behind.remove(job)
            self.taken += weight
        self._count(share, -weight)
        if not self._running[share]:
            del self._running[share]

    def _count(self, share: Share, weight: int) -> None:
        """Add a weight, which can be negative, to the lane's total, to a share, and to the part above its maximum."""
        before = self._running[share]
        self.taken += weight
        self._running[share] = after = before + weight
        self._beyond += max(after, self._per_share) - max(before, self._per_share)

    def _is_inside(self, job: Job) -> bool:
        return job in self._inside or job in self._in_reserve

    def _has_slot(self, share: Share) -> bool:
        # Jobs above a share's maximum, which have left the reserve, take no slot from other shares.
        taken = self.taken - min(self._beyond, self._reserve)
        return taken < self._total and self._running[share] < self._per_share

    def _has_reserve(self, kind: str) -> bool:
        if len(self._in_reserve) >= self._reserve or not self._may_use_reserve(kind):
            return False
        return sum(other == kind for other in self._in_reserve.values()) < RESERVE_PER_KIND

    def _start_waiting(self) -> list[Job]:
        """Take slots for one job of each share that has a slot, then for the jobs that can use the reserve.

        Returns:
            The jobs to start now.
        """
        started = []
        # Check all shares, because the next share in turn might have no free slot.
        for share in list(self._waiting):
            if self._has_slot(share):
                job = self._next(share, next(iter(self._waiting[share])))
                self.occupy(job)
                started.append(job)
        for share, kinds in list(self._waiting.items()):
            for kind, jobs in list(kinds.items()):
                while jobs and self._has_reserve(kind):
                    job = self._next(share, kind)
                    self._in_reserve[job] = kind
                    started.append(job)
        return started

    def _next(self, share: Share, kind: str) -> Job:
        """Remove and return the next job of a share and kind. Move the share and the kind to the end of their turns."""
        kinds = self._waiting[share]
        jobs = kinds[kind]
        job = jobs.popleft()
        self._backlog.add(job.owner, -1)
        if jobs:
            kinds.move_to_end(kind)
        else:
            del kinds[kind]
        if kinds:
            self._waiting.move_to_end(share)
        else:
            del self._waiting[share]
        return job


class Lanes:
    """All lanes of a worker.

    A function that computes needs a slot in two lanes: the functions' lane, and the lane of functions that compute.
    `Pace` decides which functions compute. A call that awaits on a shared loop needs memory but no thread, so its
    weight in the lane of waiting calls is its estimated number of bytes.

    Args:
        capacity: Maximum number of functions that run at once in other processes. None: functions run on threads of
            this process.
    """

    def __init__(self, settings: Settings, pace: Pace, backlog: Backlog, capacity: int | None = None) -> None:
        self._pace = pace
        threads, computing, reserve = settings.max_threads, COMPUTING, RESERVE
        if capacity is not None:  # functions run in other processes, so they don't share this interpreter
            threads = computing = min(threads, capacity)
            reserve = RESERVE_APART
        functions = Lane(threads, settings.share(threads), backlog)
        functions.keep_reserve(reserve, lambda kind: not pace.waits(kind))
        reads = Lane(HEAVY_READS, HEAVY_READS // 2, backlog)
        authors = Lane(AUTHORS, AUTHORS // 2, backlog)
        self._by_name = {"functions": functions, "reads": reads, "authors": authors}
        self._computing = Lane(computing, computing, backlog, attrgetter("owner", "kind"))
        self._waiting_calls = Lane(
            settings.async_bytes,
            settings.share(settings.async_bytes),
            backlog,
            weigh=lambda job: job.weight() or pace.held(job.kind),
        )
        self._all = (functions, reads, authors, self._computing, self._waiting_calls)
        self._freed: list[Job] = []
        self.max_threads = settings.max_threads + 2 * RESERVE + HEAVY_READS + AUTHORS + SPARE_THREADS

    def enter(self, job: Job) -> bool:
        """Take the slots that a job needs to start now. If a slot isn't free, queue the job for it and return False.

        When the job has got this slot, the threads submit it again. It then calls `enter` again for its next slot.
        """
        job.in_lane = True
        if job.lane is None:
            return True
        if self.awaits(job):
            self._freed += self._leave_thread(job)  # the slots that the job took before its kind was known to await
            return self._waiting_calls.enter(job)
        if not self._by_name[job.lane].enter(job):
            return False
        # Jobs in the other lanes can compute without a second slot, because these lanes have few slots.
        return job.lane != "functions" or self._pace.may_start(job.kind) or self._computing.enter(job)

    def awaits(self, job: Job) -> bool:
        """Return whether a job awaits on a shared loop, so that it needs memory instead of a thread."""
        return job.lane == "functions" and self._pace.awaits(job.kind)

    def wait(self, job: Job) -> list[Job]:
        """Move a running job to the waiting calls, which frees its thread's slots. Return the jobs to start now."""
        job.in_lane = True
        self._waiting_calls.occupy(job)
        self._waiting_calls.reweigh(job)
        return self._leave_thread(job)

    def freed(self) -> list[Job]:
        """Return the jobs to start after a job has moved from one lane to another, and clear the list."""
        freed, self._freed = self._freed, []
        return freed

    def release(self, kind: str) -> list[Job]:
        """Remove and return the jobs of a kind that wait for a thread, because the kind awaits: it needs no thread."""
        return self._computing.release(kind) + self._by_name["functions"].release(kind)

    def waiting_bytes(self) -> int:
        """Return the estimated memory of the calls that await on shared loops."""
        return self._waiting_calls.taken

    def occupy(self, job: Job, looks: int, used_processor: float) -> list[Job]:
        """Take the slots of a running job that has turned out to be slow. Return the jobs to start now.

        Args:
            looks: Number of times that the watcher has checked the job.
            used_processor: CPU time of the job during these checks, in seconds.
        """
        if job.lane is None:
            return []
        job.in_lane = True
        lane = self._by_name[job.lane]
        lane.occupy(job)
        if self._pace.record_look(job.kind, looks, used_processor):
            return lane.leave_reserve(job) + self._computing.leave(job) + self._computing.release(job.kind)
        if job.lane == "functions":
            self._computing.occupy(job)
        return []

    def leave(self, job: Job) -> list[Job]:
        """Free all slots of a job that has ended. Return the jobs to start now."""
        return self._leave_thread(job) + self._waiting_calls.leave(job)

    def _leave_thread(self, job: Job) -> list[Job]:
        started = self._computing.leave(job)
        return started + self._by_name[job.lane].leave(job) if job.lane else started

    def leave_behind(self, job: Job) -> list[Job]:
        """Free some slots of a job that might never end. Return the jobs to start now.

        - The slot among the functions that compute is freed, because two endless loops would block all such functions.
        - The slot in the functions' lane isn't freed, because endless loops could otherwise take all threads.
        - A slot in another lane is freed, because these lanes have few slots. The job still counts in its share.
        """
        started = self._computing.leave(job)
        if job.lane is not None:  # occupy first: a job of a quick kind, or a job cancelled early, has no slot yet
            lane, job.in_lane = self._by_name[job.lane], True
            lane.occupy(job)
            started += lane.leave_reserve(job) if job.lane == "functions" else lane.leave_behind(job)
        return started

    def expire(self, before: float) -> list[Job]:
        """Remove and return the jobs that arrived before a time and still wait in a lane."""
        for job in (expired := self._waiting_calls.expire(before)):
            job.waits_for = "room among the waiting calls"
        return expired + [job for lane in self._all for job in lane.expire(before)]
