"""A real server with the interface of `serving.Bench`, which kills its workers and executors while tests use it.

Each request is sent again until it is answered, so a test sees no difference.
"""

import contextlib
import fcntl
import random
import signal
import tempfile
import threading
import time
import uuid
from pathlib import Path

import redis_server
import serving

from toolpack_server.volumes.scratch import PREFIX
from tools.faults.clients import Connection, RefusedError
from tools.faults.world import Server, children, send_signal

REPEATABLE = ("create_session", "fork_session", "reset_session", "run_function")
CRASHED = "CrashedError"  # the error of a call if its process died; the call changed nothing


class KilledServer:
    """A server with two workers, and a thread that kills its processes.

    Args:
        store: `sqlite` or `redis`.
        isolation: `thread` or `process`.
        pack: The toolpack.
        pause: Average number of seconds between two kills. 0 means that only calls of `kill` kill.
        seed: Seed of the random choices.
    """

    def __init__(self, store, isolation, pack, pause=0.0, seed=0):
        self.kills = 0
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        url = None
        if store == "redis":
            url, _ = self._stack.enter_context(redis_server.start(folder))
        settings = {"packs": pack, "isolation": isolation, "scratch_dir": folder, "max_result_bytes": 2**26}
        settings |= {"keep_versions": 1000, "log_calls": "off"}
        self._server = Server(folder, url, 2, pack_dir=serving.PACKS, **settings)
        self._folder = folder
        self._rng = random.Random(seed)
        self._connections = threading.local()
        self._ended = threading.Event()
        self._stack.callback(self._server.end)
        self._server.start()
        self._killer = threading.Thread(target=self._kill_often, args=[pause], daemon=True)
        if pause:
            self._killer.start()

    def kill(self):
        """Kill the oldest worker or any executor, whatever it is doing."""
        workers = self._server.workers()
        executors = [each for worker in workers for zygote in children(worker) for each in children(zygote)]
        candidates = executors if executors and self._rng.random() < 0.5 else workers[:1]
        if candidates:
            send_signal(self._rng.choice(candidates), signal.SIGKILL)
            self.kills += 1

    def leftovers(self):
        """Return the scratch folders of processes that have ended."""
        folders = []
        for folder in self._folder.glob(f"{PREFIX}*"):
            with contextlib.suppress(FileNotFoundError), (folder / "lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    folders.append(folder)
                except BlockingIOError:
                    continue
        return folders

    def rpc(self, method, /, **params):
        """Send a request until it is answered, and return the result. Each thread has a connection of its own."""
        if method in REPEATABLE:
            params.setdefault("call_id", uuid.uuid4().hex)
        if not hasattr(self._connections, "own"):
            self._connections.own = Connection([self._server.port], random.Random())
            self._stack.callback(self._connections.own.close)
        while True:
            try:
                return self._connections.own.insist(method, params, time.monotonic() + serving.PATIENCE)
            except RefusedError as error:
                if method == "close_session":  # the first answer was lost
                    return True
                if CRASHED not in str(error):
                    raise AssertionError(f"{method} {params}: {error}") from error

    def create(self, *toolpacks, **params):
        return self.rpc("create_session", toolpacks=list(toolpacks), **params)["session_id"]

    def call(self, session_id, function, /, **kwargs):
        while True:
            envelope = self.rpc("run_function", session_id=session_id, function=function, kwargs=kwargs)
            if not str(envelope["error"]).startswith(CRASHED):
                return envelope

    def result(self, session_id, function, /, **kwargs):
        envelope = self.call(session_id, function, **kwargs)
        assert envelope["error"] is None, envelope
        return envelope["result"]

    def close(self):
        self._ended.set()
        if self._killer.is_alive():
            self._killer.join()
        self._stack.close()

    def _kill_often(self, pause):
        while not self._ended.wait(self._rng.uniform(0, 2 * pause)):
            with contextlib.suppress(OSError, RuntimeError):
                if self._server.is_up():  # a kill during the start could leave no worker to answer
                    self.kill()
