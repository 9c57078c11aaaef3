"""Lanes: how many threads jobs of one sort may occupy, and in which order the others wait.

No owner takes more than its share, and owners take turns: one that submits many jobs delays only its own.
Within an owner kinds take turns, too, and one that isn't known to wait never waits for those that are. A lane changes
under the lock of the threads alone.

What becomes of a job that comes to a lane:

    its share has a place      it is inside, and counts in `taken` and in its share, until it leaves
    no place, but the reserve  it runs in the reserve, which counts nowhere; when the watcher finds that its kind waits,
      is for its kind          it takes a place of its share, even beyond that
    neither                    it waits, by share and by kind; whoever leaves lets the next one start

A job whose kind is known to be quick comes to no lane. If it turns out to be slow, it takes its place while it runs
(`occupy`). One that has passed its deadline and doesn't end is left behind: others get its place, its share doesn't.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from operator import attrgetter

from toolpack_server.base.settings import Settings
from toolpack_server.engine.jobs import Job
from toolpack_server.engine.pace import Pace

COMPUTING = 2  # functions at the same time: more would only take the interpreter from each other and from the others
# At the same time, of all owners; one owner has at most half of them, so that it can't keep the others out.
HEAVY_READS = 2  # each takes the processor for as long as it lasts
AUTHORS = 4  # evaluators, loaders, builders: they may compute, or wait, for as long as their deadline lets them
SPARE_THREADS = 16  # for the leader and for what is always quick, unless the store keeps it waiting
RESERVE = 16  # places among the functions beside all shares, for kinds that aren't known to wait
RESERVE_PER_KIND = 2
RESERVE_APART = 2  # the same, where functions run in other processes
# Places in other processes beside those that functions have: for that reserve and what has left it, for heavy reads
# and what authors write, and two for quick functions, which take no place in a lane.
SPARE_PLACES = 2 * RESERVE_APART + HEAVY_READS + AUTHORS + 2

Share = Hashable
"""Whose share of a lane a job takes: an owner's, or that of one of an owner's functions."""


class Backlog:
    """How many jobs wait for their turn: all of a worker, in queues of sessions and in lanes, and those of each owner.

    Changed under the lock of the threads.
    """

    def __init__(self) -> None:
        self.total = 0
        self.of_owner: Counter[str] = Counter()

    def add(self, owner: str, more: int) -> None:
        self.total += more
        self.of_owner[owner] += more


class Lane:
    """A limited number of places for jobs: `total` in all, and `per_share` for each share.

    Beside them there may be a reserve: jobs of some kinds may start where all places are taken. A job that must leave
    it counts in its share, even beyond that; as many of these as the reserve has places take no place of others.

    Those that wait for a place are counted in `backlog`.
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
        self._beyond = 0  # how much of `taken` is beyond what a share may take
        # By share, then by kind; the one whose turn is next comes first.
        self._waiting: OrderedDict[Share, OrderedDict[str, deque[Job]]] = OrderedDict()
        self._reserve = 0
        self._may_use_reserve: Callable[[str], bool] = lambda _: False
        self._in_reserve: dict[Job, str] = {}

    def keep_reserve(self, places: int, may_use: Callable[[str], bool]) -> None:
        """Keep so many places in reserve for the kinds that may use them."""
        self._reserve, self._may_use_reserve = places, may_use

    def enter(self, job: Job) -> bool:
        """Take a place for a job that is to start now; if there is none, let it wait and get False."""
        if self._is_inside(job):
            return True
        share = self._share(job)
        # Whoever is waiting has no place to take (`leave` sees to that), so this one can't overtake it.
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
        """Take a place for a job that runs already, even if there is none."""
        if not self._is_inside(job):
            self._take_place(job)

    def reweigh(self, job: Job) -> None:
        """Weigh a job again that is inside already."""
        self._give_back(job)
        self._take_place(job)

    def leave(self, job: Job) -> list[Job]:
        """Give back the place of a job that has ended; get the jobs that are to start now."""
        if self._in_reserve.pop(job, None) is None:
            if job not in self._inside:
                return []
            self._give_back(job)
        return self._start_waiting()

    def leave_reserve(self, job: Job) -> list[Job]:
        """Let a job that may not use the reserve any more take a place of its share, even if there is none."""
        if self._in_reserve.pop(job, None) is None:
            return []
        self.occupy(job)
        return self._start_waiting()

    def leave_behind(self, job: Job) -> list[Job]:
        """Let others have the place of a job inside that may never end; it goes on to count in its own share."""
        if job not in self._left_behind:
            self._left_behind.add(job)
            self.taken -= self._inside[job]
        return self._start_waiting()

    def release(self, kind: str) -> list[Job]:
        """Let the jobs of a kind go that wait, for they need no place any more, and get them."""
        return self._take(lambda waits, jobs: len(jobs) if waits == kind else 0)

    def expire(self, before: float) -> list[Job]:
        """Let the jobs go that have waited since before a time, and get them."""
        return self._take(lambda _, jobs: sum(job.arrived < before for job in jobs))

    def _take(self, how_many: Callable[[str, deque[Job]], int]) -> list[Job]:
        """Take the first jobs of each share and kind out of those that wait."""
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
        """Start one job of each share that has a place, then those that may use the reserve."""
        started = []
        # The one whose turn is next may have all of its share already: look at the others, too.
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
        """Take the next job of a share and kind; the others wait behind those of all other kinds and shares."""
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

    A function that computes is in two of them: beside its place among the functions it needs one to compute. Which
    functions compute is `Pace`'s to know.

    Args:
        places: How many functions run at once in other processes; None if they run on threads of this one.
    """

    def __init__(self, settings: Settings, pace: Pace, backlog: Backlog, places: int | None = None) -> None:
        self._pace = pace
        threads, computing, reserve = settings.max_threads, COMPUTING, RESERVE
        if places is not None:  # functions don't share an interpreter, but their processes
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
        """Take the places that a job needs which is to start now; if one is missing, let it wait there and get False.

        When it has got that one, it is submitted and comes here again.
        """
        job.in_lane = True
        if job.lane is None:
            return True
        if self.awaits(job):
            self._freed += self._leave_thread(job)
            return self._room.enter(job)
        if not self._by_name[job.lane].enter(job):
            return False
        # The other lanes' jobs compute, too, but those are narrow enough.
        return job.lane != "functions" or self._pace.may_start(job.kind) or self._computing.enter(job)

    def awaits(self, job: Job) -> bool:
        """Whether a job needs room to wait rather than a thread."""
        return job.lane == "functions" and self._pace.awaits(job.kind)

    def wait(self, job: Job) -> list[Job]:
        """Let a job wait that runs: it gives its thread back; get the jobs that are to start now."""
        job.in_lane = True
        self._room.occupy(job)
        self._room.reweigh(job)
        return self._leave_thread(job)

    def freed(self) -> list[Job]:
        """Get the jobs that are to start because another one has entered a lane and left one."""
        freed, self._freed = self._freed, []
        return freed

    def release(self, kind: str) -> list[Job]:
        """Return the jobs of a kind that wait for a thread, as its calls wait on a shared loop instead."""
        return self._computing.release(kind) + self._by_name["functions"].release(kind)

    def waiting_bytes(self) -> int:
        return self._room.taken

    def occupy(self, job: Job, looks: int, used_processor: float) -> list[Job]:
        """Take the places of a job that runs and has turned out to be slow; get the jobs that are to start for that.

        The watcher has looked at it so often, and seen it use the processor for `used_processor`.
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
        """Let others compute though a job hasn't ended, as it may never end; it keeps a place among the functions.

        Otherwise two loops without an end would keep everybody from computing, and any number of them would take all
        threads. In the other lanes, which have few places, it keeps its owner's share alone.
        """
        started = self._computing.leave(job)
        if job.lane is not None:  # it may have been so quick, or cancelled so soon, that it has none
            lane, job.in_lane = self._by_name[job.lane], True
            lane.occupy(job)
            started += lane.leave_reserve(job) if job.lane == "functions" else lane.leave_behind(job)
        return started

    def expire(self, before: float) -> list[Job]:
        for job in (expired := self._room.expire(before)):
            job.waits_for = "room among the waiting calls"
        return expired + [job for lane in self._all for job in lane.expire(before)]
