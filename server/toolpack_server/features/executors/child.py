"""A worker's end of its zygote and of one executor.

An executor is killed through a file descriptor of its process, never by its id, which the system may have
given to another process meanwhile.
"""

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from toolpack_server.base.errors import StartError, shown
from toolpack_server.base.logger import log
from toolpack_server.base.settings import PREFIX
from toolpack_server.base.terminal import printable
from toolpack_server.features.executors import system
from toolpack_server.features.executors.channel import Channel, ExecutorGoneError, Frame
from toolpack_server.features.executors.executor import Configuration
from toolpack_server.features.executors.output import Output
from toolpack_server.features.executors.zygote import MAX_CONFIGURATION
from toolpack_server.jsonio.strict import dumps, loads
from toolpack_server.packs.inventory import Inventory

# The module path is that of this process, so that the same modules are found. It comes through the socket, as the
# command line of a process should stay short.
_COMMAND = """
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[2]))
sys.path[:] = json.loads(control.recv(2**17))
from toolpack_server.features.executors.zygote import main
main(control)
"""
_numbers = itertools.count(1)
OTHERS = "their classes or functions differ from those of the server: start it again."
START_SECONDS = 60.0  # until the log says that an executor isn't there yet, which may have to import the toolpacks
STARTS = 20  # times as long, until it is given up: what it does isn't slow, but stands still
STATUS_SECONDS = 2.0  # until the zygote has said how an executor has ended
END_SECONDS = 2.0  # until the zygote has ended with all that it has started


class Zygote:
    """Starts the zygote, which must find the expected toolpacks, and forks executors from it.

    Raises:
        StartError: The toolpacks can't be loaded there, or are others than here.
    """

    def __init__(self, configuration: Configuration, expected: Inventory) -> None:
        self._configuration = configuration
        self._expected = expected
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        answer = self._launch()
        if answer.get("threads"):
            self.close()
            self._configuration = replace(self._configuration, preload=False)
            answer = self._launch()
        problem = answer.get("error")
        if "inventory" in answer and self._expected.difference(Inventory.from_json(answer["inventory"])) is not None:
            problem = OTHERS
        if problem is not None:
            self.close()
            raise StartError(f"the toolpacks can't be used in processes of their own: {problem}")

    def _launch(self) -> Mapping[str, Any]:
        """Start it, and get what it says of its toolpacks."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        with theirs:
            # No shell, and nothing that a client has sent.
            self._process = subprocess.Popen(  # noqa: S603
                [
                    *(sys.executable, "-P", *(f"-W{option}" for option in sys.warnoptions)),
                    *("-c", _COMMAND.strip(), "executors", str(theirs.fileno())),
                ],
                env={"TZ": "UTC", "PYTHONHASHSEED": "0", **environment},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self._control.send(dumps([path or str(Path.cwd()) for path in sys.path]))
            self._control.send(dumps(vars(self._configuration)))
            answer: Mapping[str, Any] = loads(self._control.recv(MAX_CONFIGURATION))
        except (OSError, ValueError):
            return {"error": "the process in which they are loaded has ended"}
        return answer

    @property
    def process(self) -> int:
        return self._process.pid

    def fork(self, *, again: bool = True) -> "ExecutorProcess | None":
        """Fork an executor. If the zygote has ended, start another one `again`, or get None.

        Raises:
            StartError: Another zygote can't be started.
        """
        with self._lock:
            child = self._fork()
            if child is None and again:
                self.close()
                self._start()
                child = self._fork()
            return child

    def _fork(self) -> "ExecutorProcess | None":
        end, theirs = socket.socketpair()
        ended, status = os.pipe()
        printed, output = os.pipe()
        try:
            socket.send_fds(self._control, [b"fork"], [theirs.fileno(), status, output])
        except OSError:
            end.close()
            os.close(ended)
            os.close(printed)
            return None
        finally:
            theirs.close()
            os.close(status)
            os.close(output)
        channel = Channel(end, self._configuration.max_answer_bytes)
        return ExecutorProcess(channel, ended, Output(printed), self._process.pid, self._expected)

    def close(self) -> None:
        """Stop the zygote, and with it all executors."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ExecutorProcess:
    """One executor, as its worker sees it. All that waits for it raises `ExecutorGoneError` if it has ended."""

    def __init__(self, channel: Channel, ended: int, output: Output, zygote: int, expected: Inventory) -> None:
        self._channel = channel
        self._output = output
        self.number = next(_numbers)  # which no other executor of this process has had
        self.calls = 0
        self.clean = True  # it has run no operation that leaves traces
        self.owes = False  # it was asked, and hasn't answered
        self._begun = False  # it has said something to the request that it was given last
        self.rested = time.monotonic()  # when it was used last
        self.retired = False
        self._ended = ended  # the pipe through which the zygote says how it has ended
        self._zygote = zygote
        self._expected = expected
        self._process: int | None = None  # a file descriptor
        self._poller = select.poll()  # of what is readable once it has ended
        self._speaks = select.poll()  # of what is readable when it has answered or printed something
        self._speaks.register(channel.fileno(), select.POLLIN)
        self._speaks.register(output.fileno(), select.POLLIN)

    def _greeting(self) -> Mapping[str, Any]:
        try:
            return self._channel.receive(allows=lambda sizes: not sizes).head
        except ExecutorGoneError:
            log.error(  # noqa: TRY400 - a traceback would say nothing
                "An executor has ended before it was ready, while it set up the sandbox or imported the toolpacks: do "
                "in a function what a library opens or starts when it is imported, or omit "
                "TOOLPACK_EXECUTORS_SANDBOX."
            )
            raise

    def greet(self) -> None:
        """Wait until it is there, if it has just been forked."""
        if self._process is not None:
            return
        for times in range(1, STARTS + 1):
            if self._output.wait_for(self._channel.fileno(), self._speaks, START_SECONDS):
                break
            log.warning("An executor has been starting for %g s; waiting for it.", times * START_SECONDS)
        else:
            raise ExecutorGoneError
        try:
            head = self._greeting()
            if "problem" in head:
                log.error("An executor can't be set up: %s.", printable(shown(str(head["problem"]))))
                raise ExecutorGoneError
            if "inventory" in head and self._expected.difference(Inventory.from_json(head["inventory"])) is not None:
                log.error("The toolpacks can't be used in an executor: %s", OTHERS)
                raise ExecutorGoneError
            process = head["process"]
            descriptor = os.pidfd_open(process)
        except (KeyError, OSError, TypeError, ValueError, OverflowError):
            raise ExecutorGoneError from None
        # What it says must be true: this process must never kill another one.
        if system.parent_of(process) != self._zygote or _is_ready(descriptor):
            os.close(descriptor)
            raise ExecutorGoneError
        self._process = descriptor
        self._poller.register(self._channel.fileno(), select.POLLIN)
        self._poller.register(descriptor, select.POLLIN)

    def ask(self, head: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> None:
        """Send it a request, or what it needs for that."""
        self._begun &= self.owes
        self.owes = True
        try:
            self._channel.send(head, pieces)
        except ExecutorGoneError:
            raise ExecutorGoneError(unread=not self._begun) from None

    def answer(self, allows: Callable[[Sequence[int]], bool]) -> Frame:
        """Wait for its answer, which may be that it needs something; `allows` says which sizes its pieces may have.

        Raises:
            ExecutorGoneError: It has ended; `unread` is only true if it hasn't begun.
            ValueError: What it has sent isn't an answer.
        """
        self._output.wait_for(self._channel.fileno(), self._speaks)
        try:
            frame = self._channel.receive(orjson.loads, allows)
        except ExecutorGoneError as gone:
            raise ExecutorGoneError(unread=gone.unread and not self._begun) from None
        self._begun = True
        if "need" not in frame.head:
            self.owes = False
            self.calls += 1
        return frame

    def printed(self, *, rest: bool = False) -> str:
        """Get what it has printed, for the log; the rest of it, too, if it has ended."""
        if rest:
            self._output.read()
        return self._output.take()

    def is_alive(self) -> bool:
        """Whether it is running, and sends nothing unasked."""
        return not self._poller.poll(0)

    def kill(self) -> None:
        """Kill it, and wake the thread that waits for it. From any thread, while it isn't closed; brief."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self._channel.shutdown()

    def how_it_ended(self) -> str | None:
        """Get how it exited, like "signal 11"; None if that is unknown, because the zygote has exited, too."""
        if not _is_ready(self._ended, STATUS_SECONDS):
            self.kill()
            return "without an answer"
        status = os.read(self._ended, 16)
        if not status:
            return None
        return f"exit status {int(status)}" if int(status) >= 0 else f"signal {-int(status)}"

    def close(self) -> None:
        """Kill it if it is running, and release its resources."""
        self.kill()
        self._channel.close()
        self._output.close()
        os.close(self._ended)
        if self._process is not None:
            os.close(self._process)
            self._process = None


def _is_ready(descriptor: int, seconds: float = 0) -> bool:
    """Whether a descriptor becomes readable within `seconds`; that of a process does when it exits."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
