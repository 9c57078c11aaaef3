"""Jobs for threads, and lanes: how many threads jobs of one sort may occupy, and in which order the others wait.

The rule: no name takes more than its share, and names take turns: whoever submits much waits for his own jobs only. A
lane changes under the lock of the threads alone.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from operator import attrgetter

from server.settings import Settings

COMPUTING = 2  # functions at the same time: more would only take the interpreter from each other and from the others
HEAVY_READS = 2  # at the same time: each takes the processor for as long as it lasts
SPARE_THREADS = 16  # for the leader and for what is always quick, unless the store keeps it waiting

Name = Hashable


class Job:
    """Something to do on a thread, with an optional deadline.

    Attributes:
        lane: The lane that limits the job unless it is known to be quick; None for what is always quick.
        shares_processor: It also waits for its turn to compute; False where its lane sees to that.
        in_lane: It has or had a place in a lane, or waits for one.
        kind: Jobs of one kind take about the same time.
        name: The name whose share of the lane it takes.
        arrived: When it came, on the monotonic clock.
        deadline: When, on the monotonic clock, the job has taken too long; None while no clock runs.
        stuck_from: From when on its thread counts as stuck, if the job has passed its deadline and still runs.
        left_behind: It has passed its deadline and still runs.
    """

    lane: "Lane | None" = None
    shares_processor: bool = False
    in_lane: bool = False
    kind: str = ""
    name: str = ""
    arrived: float = 0.0
    deadline: float | None = None
    stuck_from: float = float("inf")
    left_behind: bool = False

    def is_cancelled(self) -> bool:
        """Whether nobody wants it any more."""
        return False

    def is_over(self, now: float) -> bool:
        """Whether the job, which runs, is to be given up: it has passed its deadline, or was cancelled."""
        return self.deadline is not None and (now > self.deadline or self.is_cancelled())

    def run(self) -> None:
        """Do the work. Must not raise."""
        raise NotImplementedError

    def complete(self, *, timed_out: bool) -> bool:
        """Take over what `run` has done, and say if the job is done; if not, it is submitted again at some time.

        Called under the lock: brief, and must not raise.

        Args:
            timed_out: The deadline has passed: what `run` does or has done doesn't count.
        """
        raise NotImplementedError

    def ended(self) -> None:
        """Note that a job which was left behind has ended. Called under the lock: brief."""


class Lane:
    """A limited number of places, which names share.

    Args:
        total: How many jobs may run at the same time.
        per_name: How many of them may belong to one name.
        name: What is a name here.

    Attributes:
        waiting: How many jobs wait for a place.
    """

    def __init__(self, total: int, per_name: int, name: Callable[[Job], Name] = attrgetter("name")) -> None:
        self._total = total
        self._per_name = per_name
        self._name = name
        self._inside: set[Job] = set()
        self._running: Counter[Name] = Counter()
        self._waiting: OrderedDict[Name, deque[Job]] = OrderedDict()  # the name whose turn is next comes first
        self.waiting = 0

    def enter(self, job: Job) -> bool:
        """Take a place for a job that is to start now; if there is none, let it wait and get False."""
        if job not in self._inside:
            name = self._name(job)
            if name in self._waiting or not self._has_place(name):
                self._waiting.setdefault(name, deque()).append(job)
                self.waiting += 1
                return False
            self.occupy(job)
        return True

    def occupy(self, job: Job) -> None:
        """Take a place for a job that runs already, even if there is none."""
        if job not in self._inside:
            self._inside.add(job)
            self._running[self._name(job)] += 1

    def leave(self, job: Job) -> list[Job]:
        """Give back the place of a job that has ended; get the jobs that have got one and are to start now."""
        if job not in self._inside:
            return []
        self._inside.remove(job)
        name = self._name(job)
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
        return [self._start(name) for name in list(self._waiting) if self._has_place(name)]

    def release(self, kind: str) -> list[Job]:
        """Let the jobs of a kind go that wait, for they need no place any more, and get them."""
        released: list[Job] = []
        for name, jobs in list(self._waiting.items()):
            if jobs[0].kind == kind:
                released += self._waiting.pop(name)
        self.waiting -= len(released)
        return released

    def expire(self, before: float) -> list[Job]:
        """Let the jobs go that have waited since before a time, and get them."""
        expired = []
        for name, jobs in list(self._waiting.items()):
            while jobs and jobs[0].arrived < before:
                expired.append(jobs.popleft())
            if not jobs:
                del self._waiting[name]
        self.waiting -= len(expired)
        return expired

    def _has_place(self, name: Name) -> bool:
        return len(self._inside) < self._total and self._running[name] < self._per_name

    def _start(self, name: Name) -> Job:
        """Start a name's next job; its other jobs wait behind those of all other names."""
        jobs = self._waiting[name]
        job = jobs.popleft()
        self.waiting -= 1
        if jobs:
            self._waiting.move_to_end(name)
        else:
            del self._waiting[name]
        self.occupy(job)
        return job


class Lanes:
    """All lanes of a worker.

    Args:
        settings: How many threads there may be.

    Attributes:
        functions: For operations on sessions.
        reads: For reads and other work that takes much of the processor.
        computing: For functions that compute, which are in it as well as in their own lane.
        max_threads: The threads that all of this needs.
    """

    def __init__(self, settings: Settings) -> None:
        threads, computing = settings.max_threads, COMPUTING
        if settings.isolation == "process":  # functions don't share an interpreter, but their processes
            threads = computing = min(threads, settings.executors)
        self.functions = Lane(threads, settings.max_threads_per_name)
        self.reads = Lane(HEAVY_READS, HEAVY_READS)
        self.computing = Lane(computing, computing, attrgetter("name", "kind"))
        self.max_threads = settings.max_threads + HEAVY_READS + SPARE_THREADS

    @property
    def waiting(self) -> int:
        """How many jobs wait for a place."""
        return self.functions.waiting + self.reads.waiting + self.computing.waiting

    def leave(self, job: Job) -> list[Job]:
        """Give back all places of a job that has ended; get the jobs that are to start now."""
        started = self.computing.leave(job)
        return started + job.lane.leave(job) if job.lane else started

    def expire(self, before: float) -> list[Job]:
        """Let the jobs go that have waited since before a time, and get them."""
        return [job for lane in (self.functions, self.reads, self.computing) for job in lane.expire(before)]
