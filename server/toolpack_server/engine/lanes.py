"""Lanes: limits on the number of threads for jobs of one sort, with queues of the waiting jobs.

No owner takes more than its share, and owners take turns: an owner that submits many jobs delays only its own jobs.
Within an owner's share, kinds of jobs take turns, too. A kind that isn't known to wait never waits for kinds that are.
A lane changes only under the lock of the threads.

A job that enters a lane:

    its share has a slot       it is inside, and counts in `taken` and in its share, until it leaves
    no slot, but its kind may  it runs in the reserve, which isn't counted; when the watcher finds that its kind waits,
      use the reserve          it takes a slot of its share, even above the maximum
    neither                    it waits in the queue of its share and kind; a job that leaves starts the next one

A job of a quick kind enters no lane. If it turns out to be slow, it takes a slot while it runs (`occupy`). A job that
has missed its deadline and doesn't end is left behind: other owners get its slot, but it still counts in its share.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from operator import attrgetter

from toolpack_server.base.settings import Settings
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.pace import Pace

COMPUTING = 2  # functions that compute at once; more would only compete for the interpreter
# Jobs at once, of all owners. One owner gets at most half, so that it can't block the others.
HEAVY_READS = 2  # each keeps the CPU busy until it ends
AUTHORS = 4  # evaluators, loaders, builders: they may compute or wait until their deadline
SPARE_THREADS = 16  # for the leader and for jobs that are always quick unless the store is slow
RESERVE = 16  # extra slots for functions of kinds that aren't known to wait
RESERVE_PER_KIND = 2
RESERVE_APART = 2  # like RESERVE, if functions run in other processes
# Slots in other processes besides those of functions: for the reserve and the jobs that have left it, for heavy reads
# and authors' code, and two for quick functions, which enter no lane.
SPARE_PLACES = 2 * RESERVE_APART + HEAVY_READS + AUTHORS + 2

Share = Hashable
"""Key of a share of a lane: an owner, or an owner and one of its functions."""


class Backlog:
    """Number of waiting jobs of a worker, in queues of sessions and in lanes: the total, and by owner.

    It changes only under the lock of the threads.
    """

    def __init__(self) -> None:
        self.total = 0
        self.of_owner: Counter[str] = Counter()

    def add(self, owner: str, change: int) -> None:
        self.total += change
        self.of_owner[owner] += change


class Lane:
    """A limited number of slots for jobs, with a queue.

    There may be a reserve: jobs of some kinds may start there when no slot is free. A job that must leave the
    reserve counts in its share, even above the maximum. Up to the size of the reserve, such jobs take no slot of
    others.

    Args:
        total: Maximum weight of all jobs inside.
        per_share: Maximum weight of the jobs of one share.
        backlog: Counts the waiting jobs.
        share: Returns the share of a job.
        weigh: Returns the weight of a job; by default each job has the weight 1.
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
        self._beyond = 0  # the part of `taken` that is above the maximum of the shares
        # By share, then by kind, in the order of their turns.
        self._waiting: OrderedDict[Share, OrderedDict[str, deque[Job]]] = OrderedDict()
        self._reserve = 0
        self._may_use_reserve: Callable[[str], bool] = lambda _: False
        self._in_reserve: dict[Job, str] = {}

    def keep_reserve(self, places: int, may_use: Callable[[str], bool]) -> None:
        """Add a reserve with a number of slots, for the kinds that may use it."""
        self._reserve, self._may_use_reserve = places, may_use

    def enter(self, job: Job) -> bool:
        """Take a slot for a job that should start now. If no slot is free, queue the job and return False."""
        if self._is_inside(job):
            return True
        share = self._share(job)
        # No waiting job could take a slot, as `leave` has started all that could. So this job overtakes none.
        if self._has_place(share):
            self.occupy(job)
            return True
        if job.kind not in self._waiting.get(share, ()) and self._has_reserve(job.kind):
            self._in_reserve[job] = job.kind
            return True
        self._waiting.setdefault(share, OrderedDict()).setdefault(job.kind, deque()).append(job)
        self._backlog.add(job.owner, 1)
        return False

    def occupy(self, job: Job) -> None:
        """Take a slot for a job that is running already, even if none is free."""
        if not self._is_inside(job):
            self._take_place(job)

    def reweigh(self, job: Job) -> None:
        """Update the weight of a job inside."""
        self._give_back(job)
        self._take_place(job)

    def leave(self, job: Job) -> list[Job]:
        """Free the slot of a job that has ended. Return the jobs to start now."""
        if self._in_reserve.pop(job, None) is None:
            if job not in self._inside:
                return []
            self._give_back(job)
        return self._start_waiting()

    def leave_reserve(self, job: Job) -> list[Job]:
        """Move a job from the reserve to a slot of its share, even if none is free. Return the jobs to start now."""
        if self._in_reserve.pop(job, None) is None:
            return []
        self.occupy(job)
        return self._start_waiting()

    def leave_behind(self, job: Job) -> list[Job]:
        """Free the slot of a job that may never end, but count the job in its share. Return the jobs to start now."""
        if job not in self._left_behind:
            self._left_behind.add(job)
            self.taken -= self._inside[job]
        return self._start_waiting()

    def release(self, kind: str) -> list[Job]:
        """Remove the waiting jobs of a kind, which need no slot any more, and return them."""
        return self._take(lambda waiting_kind, jobs: len(jobs) if waiting_kind == kind else 0)

    def expire(self, before: float) -> list[Job]:
        """Remove the jobs that arrived before a time and still wait, and return them."""
        return self._take(lambda _, jobs: sum(job.arrived < before for job in jobs))

    def _take(self, how_many: Callable[[str, deque[Job]], int]) -> list[Job]:
        """Remove the first jobs from the queue of each share and kind, and return them."""
        taken = []
        for share, kinds in list(self._waiting.items()):
            for kind, jobs in list(kinds.items()):
                taken += [self._next(share, kind) for _ in range(how_many(kind, jobs))]
        return taken

    def _take_place(self, job: Job) -> None:
        self._inside[job] = weight = self._weigh(job)
        self._count(self._share(job), weight)

    def _give_back(self, job: Job) -> None:
        weight, share = self._inside.pop(job), self._share(job)
        if job in self._left_behind:
            self._left_behind.remove(job)
            self.taken += weight
        self._count(share, -weight)
        if not self._running[share]:
            del self._running[share]

    def _count(self, share: Share, weight: int) -> None:
        before = self._running[share]
        self.taken += weight
        self._running[share] = after = before + weight
        self._beyond += max(after, self._per_share) - max(before, self._per_share)

    def _is_inside(self, job: Job) -> bool:
        return job in self._inside or job in self._in_reserve

    def _has_place(self, share: Share) -> bool:
        taken = self.taken - min(self._beyond, self._reserve)
        return taken < self._total and self._running[share] < self._per_share

    def _has_reserve(self, kind: str) -> bool:
        if len(self._in_reserve) >= self._reserve or not self._may_use_reserve(kind):
            return False
        return sum(other == kind for other in self._in_reserve.values()) < RESERVE_PER_KIND

    def _start_waiting(self) -> list[Job]:
        """Start one job of each share that has a slot, then the jobs that may use the reserve."""
        started = []
        # The next share in turn may have all of its slots already, so look at all shares.
        for share in list(self._waiting):
            if self._has_place(share):
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
        """Remove and return the next job of a share and kind. Move both to the end of the order of turns."""
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

    A function that computes needs a slot in two lanes: one of the functions' lane and one to compute. `Pace` decides
    which functions compute. A call that awaits on a shared loop needs memory in the lane of waiting calls instead.

    Args:
        places: Maximum number of functions at once in other processes. None: functions run on threads of this process.
    """

    def __init__(self, settings: Settings, pace: Pace, backlog: Backlog, places: int | None = None) -> None:
        self._pace = pace
        threads, computing, reserve = settings.max_threads, COMPUTING, RESERVE
        if places is not None:  # functions run in other processes, so they don't share this interpreter
            threads = computing = min(threads, places)
            reserve = RESERVE_APART
        functions = Lane(threads, settings.share(threads), backlog)
        functions.keep_reserve(reserve, lambda kind: not pace.waits(kind))
        reads = Lane(HEAVY_READS, HEAVY_READS // 2, backlog)
        authors = Lane(AUTHORS, AUTHORS // 2, backlog)
        self._by_name = {"functions": functions, "reads": reads, "authors": authors}
        self._computing = Lane(computing, computing, backlog, attrgetter("owner", "kind"))
        self._room = Lane(
            settings.async_bytes,
            settings.share(settings.async_bytes),
            backlog,
            weigh=lambda job: job.weight() or pace.held(job.kind),
        )
        self._all = (functions, reads, authors, self._computing, self._room)
        self._freed: list[Job] = []
        self.max_threads = settings.max_threads + 2 * RESERVE + HEAVY_READS + AUTHORS + SPARE_THREADS

    def enter(self, job: Job) -> bool:
        """Take the slots that a job needs to start now. If one isn't free, queue the job for it and return False.

        When the job has got that slot, it is submitted and comes here again.
        """
        job.in_lane = True
        if job.lane is None:
            return True
        if self.awaits(job):
            self._freed += self._leave_thread(job)
            return self._room.enter(job)
        if not self._by_name[job.lane].enter(job):
            return False
        # Jobs of the other lanes compute, too, but these lanes have few slots.
        return job.lane != "functions" or self._pace.may_start(job.kind) or self._computing.enter(job)

    def awaits(self, job: Job) -> bool:
        """Return whether a job awaits on a shared loop, so that it needs memory and not a thread."""
        return job.lane == "functions" and self._pace.awaits(job.kind)

    def wait(self, job: Job) -> list[Job]:
        """Move a running job to the waiting calls, which frees its thread. Return the jobs to start now."""
        job.in_lane = True
        self._room.occupy(job)
        self._room.reweigh(job)
        return self._leave_thread(job)

    def freed(self) -> list[Job]:
        """Return the jobs to start since a job moved from one lane to another, and clear the list."""
        freed, self._freed = self._freed, []
        return freed

    def release(self, kind: str) -> list[Job]:
        """Remove the jobs of a kind that wait for a thread, and return them. They now await on a shared loop."""
        return self._computing.release(kind) + self._by_name["functions"].release(kind)

    def waiting_bytes(self) -> int:
        return self._room.taken

    def occupy(self, job: Job, looks: int, used_processor: float) -> list[Job]:
        """Take the slots of a running job that has turned out to be slow. Return the jobs to start now.

        Args:
            looks: Number of the watcher's looks at the job.
            used_processor: CPU time of the job during these looks, in seconds.
        """
        if job.lane is None:
            return []
        job.in_lane = True
        lane = self._by_name[job.lane]
        lane.occupy(job)
        if self._pace.is_slow(job.kind, looks, used_processor):
            return lane.leave_reserve(job) + self._computing.leave(job) + self._computing.release(job.kind)
        if job.lane == "functions":
            self._computing.occupy(job)
        return []

    def leave(self, job: Job) -> list[Job]:
        return self._leave_thread(job) + self._room.leave(job)

    def _leave_thread(self, job: Job) -> list[Job]:
        started = self._computing.leave(job)
        return started + self._by_name[job.lane].leave(job) if job.lane else started

    def leave_behind(self, job: Job) -> list[Job]:
        """Free the slot to compute of a job that may never end; it keeps its slot of the functions' lane.

        Otherwise two endless loops would block all functions that compute. If it kept no slot, endless loops could take
        all threads. In the other lanes, which have few slots, the job only counts in its owner's share.
        """
        started = self._computing.leave(job)
        if job.lane is not None:  # occupy first: a quick kind, or a job cancelled early, may have no slot yet
            lane, job.in_lane = self._by_name[job.lane], True
            lane.occupy(job)
            started += lane.leave_reserve(job) if job.lane == "functions" else lane.leave_behind(job)
        return started

    def expire(self, before: float) -> list[Job]:
        for job in (expired := self._room.expire(before)):
            job.waits_for = "room among the waiting calls"
        return expired + [job for lane in self._all for job in lane.expire(before)]
