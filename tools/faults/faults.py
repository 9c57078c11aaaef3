"""The faults, which are injected into processes and network connections while clients run.

Each fault repairs its damage before it ends, so the next fault starts with everything running. Many faults also check
that the server recovers in time.
"""

import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress

from toolpack_server.processes.supervisor import HANG_SECONDS, LOADING_SECONDS
from tools.faults.clients import CRASHED, Connection, UnknownError
from tools.faults.world import age, children, is_alive, send_signal, wait_until

YOUNG_SECONDS = 20.0  # age at which a worker serves for sure, even on a busy machine
TAKEOVER_SECONDS = 7.0  # maximum wait for a dead worker's session, in addition to the start of workers
LONG_OUTAGE_SECONDS = 6.5  # longer than a lease, and than the maximum time between two heartbeats of a worker
REPLACEMENT_TIMEOUT_SECONDS = 120


class Faults:
    """A thread that injects one fault after another.

    Attributes:
        injected: The number of faults by kind.
        waits: For each killed holder of a lease, the seconds that the session's next call waited.
        violations: The failed checks after faults.
    """

    def __init__(self, world, seed):
        self.injected = Counter()
        self.waits = []
        self.violations = []
        self._world = world
        self._rng = random.Random(seed)
        self._probe = Connection([server.port for server in world.servers], self._rng)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._kinds = {
            self._kill_worker: 4,
            self._kill_lease_holder: 1,
            self._pause_worker: 3,
            self._pause_worker_long: 1,
            self._pause_worker_and_supervisor: 1,
            self._hog_worker: 1,
            self._kill_server: 2,
            self._stop_server: 2,
        }
        if world.isolated:
            self._kinds |= {self._kill_executor: 4, self._kill_zygote: 1}
        if world.wires:
            self._kinds |= {
                self._cut_wire: 3,
                self._cut_all_wires: 1,
                self._mute_wire: 3,
                self._cut_wire_long: 1,
                self._pause_store: 1,
                self._kill_worker_during_outage: 1,
            }

    def start(self):
        self._thread.start()

    def stop(self):
        """Wait for the running fault, and inject no more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self):
        bag = []
        while not self._stopped.wait(self._rng.uniform(0.2, 1.2)):
            if not bag:  # draw from a bag, so that each kind gets its share even in a short run
                bag = [kind for kind, share in self._kinds.items() for _ in range(share)]
                self._rng.shuffle(bag)
            fault = bag.pop()
            try:
                fault(self._rng.choice(self._world.servers))
            except Exception as error:  # noqa: BLE001 - any exception is a violation
                self.violations.append(f"{fault.__name__.strip('_')}: {error}")
                self._repair()
            self.injected[fault.__name__.strip("_").replace("_", " ")] += 1

    def _repair(self):
        """Start servers that have ended, and resume paused processes, after a fault that failed."""
        for server in self._world.servers:
            if server.process.poll() is not None:
                server.start()
            for pid in [server.process.pid, *server.workers()]:
                send_signal(pid, signal.SIGCONT)

    def _worker(self, server):
        wait_until(server.workers, 10, "a worker")
        return self._rng.choice(server.workers())

    def _kill_worker(self, server):
        pid = self._worker(server)
        send_signal(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), 5, "the end of a killed worker")
        wait_until(server.is_up, REPLACEMENT_TIMEOUT_SECONDS, "a new worker for a killed one")

    def _kill_executor(self, server):
        executors = [pid for zygote in children(self._worker(server)) for pid in children(zygote)]
        if executors:
            send_signal(self._rng.choice(executors), signal.SIGKILL)

    def _kill_zygote(self, server):
        """Kill the zygote, the process that forks executors. Its executors end, and the worker may be replaced, too."""
        zygotes = children(self._worker(server))
        for pid in zygotes:
            send_signal(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, zygotes)), 5, "the end of a killed zygote")
        wait_until(server.is_up, REPLACEMENT_TIMEOUT_SECONDS, "a new zygote for a killed one")

    def _kill_lease_holder(self, server):
        """Kill the workers while one runs a call, and measure how long the session's next call waits."""
        session = {"session_id": self._probe.insist("create_session", {}, time.monotonic() + 30)["session_id"]}
        slow = Connection([server.port], self._rng)
        slow_call = {"function": "append_slowly", "kwargs": {"entry": "lost", "seconds": 20}} | session
        with suppress(UnknownError):
            slow.send("run_function", slow_call, seconds=1)
        for pid in server.workers():
            send_signal(pid, signal.SIGKILL)
        killed, up_times = time.monotonic(), []

        def note_start():
            self._wait_for(server)
            up_times.append(time.monotonic())

        watcher = threading.Thread(target=note_start, daemon=True)
        watcher.start()
        call = {"function": "append", "kwargs": {"entry": "next"}, "call_id": "next"} | session
        envelope = self._probe.insist("run_function", call, killed + REPLACEMENT_TIMEOUT_SECONDS)
        self.waits.append(time.monotonic() - killed)
        if not envelope["result"] or envelope["result"]["length"] != 1:
            self.violations.append(f"the call after a killed one on its session gave {envelope}")
        start_seconds = up_times[0] - killed if up_times else self.waits[-1]
        if self.waits[-1] > start_seconds + TAKEOVER_SECONDS:
            self.violations.append(f"the call after a killed one on its session waited {self.waits[-1]:.1f} s")
        watcher.join()
        self._wait_for(server)

    @staticmethod
    def _wait_for(server):
        wait_until(server.is_up, REPLACEMENT_TIMEOUT_SECONDS, "new workers for killed ones")

    def _hog_worker(self, server):
        """Run a function that blocks its whole process. The supervisor must replace the worker."""
        if self._world.isolated:
            self._hog_executor()
            return
        before = set(server.workers())
        session = self._probe.insist("create_session", {}, time.monotonic() + 30)
        hog = Connection([server.port], self._rng)
        call = {"function": "append_and_hog", "kwargs": {"entry": "lost"}}
        with suppress(UnknownError):
            hog.send("run_function", call, session["agent_path"], 0.5)
        # The supervisor counts the worker's processor time, and a busy machine gives it little.
        is_killed = "the end of a worker that computes in C"
        wait_until(lambda: before - set(server.workers()), REPLACEMENT_TIMEOUT_SECONDS, is_killed)
        wait_until(server.is_up, REPLACEMENT_TIMEOUT_SECONDS, "a new worker for a worker that computed in C")

    def _hog_executor(self):
        """Run a function that blocks its executor. The executor must end at the function's deadline."""
        session = self._probe.insist("create_session", {}, time.monotonic() + 30)
        call = {"function": "append_and_hog", "kwargs": {"entry": "lost"}, "call_id": "hog", "timeout_seconds": 0.5}
        envelope = self._probe.insist("run_function", call, time.monotonic() + 30, session["agent_path"])
        if not str(envelope["error"]).startswith(("TimeoutError", CRASHED)):
            self.violations.append(f"a call that computes in C was answered {envelope}")

    def _pause(self, pids, seconds):
        for pid in pids:
            send_signal(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in reversed(pids):
            send_signal(pid, signal.SIGCONT)

    def _pause_worker(self, server):
        self._pause([self._worker(server)], self._rng.uniform(0.1, 3))

    def _pause_worker_long(self, server):
        pid = self._worker(server)
        # The supervisor gives a worker that still imports toolpacks more time, because an import may hold the GIL.
        timeout = HANG_SECONDS if age(pid) > YOUNG_SECONDS else LOADING_SECONDS
        send_signal(pid, signal.SIGSTOP)
        wait_until(lambda: not is_alive(pid), timeout + 3, "the end of a paused worker")
        wait_until(server.is_up, REPLACEMENT_TIMEOUT_SECONDS, "a new worker for a paused one")

    def _pause_worker_and_supervisor(self, server):
        """Pause a worker so long that other workers take its leases. The paused supervisor can't replace it."""
        self._pause([server.process.pid, self._worker(server)], LONG_OUTAGE_SECONDS)

    def _kill_server(self, server):
        server.kill()
        server.start()

    def _stop_server(self, server):
        status = server.stop()
        if status != 0:
            self.violations.append(f"a stopped server ended with status {status}")
        server.start()

    def _cut(self, wires, seconds):
        for wire in wires:
            wire.cut()
        time.sleep(seconds)
        for wire in wires:
            wire.restore()

    def _cut_wire(self, _server):
        self._cut([self._rng.choice(self._world.wires)], self._rng.uniform(0, 2))

    def _cut_all_wires(self, _server):
        self._cut(self._world.wires, self._rng.uniform(0, 2))

    def _cut_wire_long(self, _server):
        self._cut([self._rng.choice(self._world.wires)], LONG_OUTAGE_SECONDS)

    def _mute_wire(self, _server):
        """Let commits reach the store, but hold back their confirmations. Then cut the connection."""
        wire = self._rng.choice(self._world.wires)
        wire.mute()
        time.sleep(self._rng.uniform(0.05, 1))
        self._cut([wire], self._rng.choice([0, 0.5, LONG_OUTAGE_SECONDS]))

    def _pause_store(self, _server):
        self._pause(self._world.store_processes(), self._rng.choice([0.5, 3, LONG_OUTAGE_SECONDS]))

    def _kill_worker_during_outage(self, server):
        """Check that a worker can start while the store can't be reached."""
        wire = self._world.wires[self._world.servers.index(server)]
        wire.cut()
        send_signal(self._worker(server), signal.SIGKILL)
        time.sleep(LONG_OUTAGE_SECONDS)
        wire.restore()
        wait_until(server.is_up, REPLACEMENT_TIMEOUT_SECONDS, "a new worker once the store is back")
