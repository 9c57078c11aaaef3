"""Handles of the zygote and the executors, through which their worker starts, uses and kills them.

An executor is killed through a pidfd, because a pidfd always refers to the same process. After the executor has exited,
the system might assign its process id to another process.
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

# The zygote receives this process's `sys.path`, so that it finds the same modules. The path is sent through the socket,
# because the command line should stay short.
_COMMAND = """
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[2]))
sys.path[:] = json.loads(control.recv(2**17))
from toolpack_server.features.executors.zygote import main
main(control)
"""
_next_number = itertools.count(1)
DIFFERENT_TOOLPACKS = "their classes or functions differ from those that the server has loaded: restart the server."
START_SECONDS = 60.0  # interval of warnings while an executor starts; it is long, because toolpacks can import slowly
MAX_STARTS = 20  # number of these intervals after which a start counts as failed
STATUS_SECONDS = 2.0  # time limit for the zygote to report an executor's exit status
END_SECONDS = 2.0  # time limit for the exit of the zygote and its descendants


class Zygote:
    """Handle of the zygote: starts the zygote, and requests executors from it.

    Args:
        expected: The toolpacks that the server has loaded. The zygote must load the same toolpacks.

    Raises:
        StartError: The zygote can't load the toolpacks, or loads different ones.
    """

    def __init__(self, configuration: Configuration, expected: Inventory) -> None:
        self._configuration = configuration
        self._expected = expected
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        """Start the zygote and check its toolpacks. Raise a `StartError` if they can't be loaded or differ."""
        answer = self._launch()
        # If importing the toolpacks starts threads, let each executor import them, because a fork doesn't copy threads.
        if answer.get("threads"):
            self.close()
            self._configuration = replace(self._configuration, preload=False)
            answer = self._launch()
        problem = answer.get("error")
        if "inventory" in answer and self._expected.difference(Inventory.from_json(answer["inventory"])) is not None:
            problem = DIFFERENT_TOOLPACKS
        if problem is not None:
            self.close()
            raise StartError(f"the toolpacks can't run in executor processes: {problem}")

    def _launch(self) -> Mapping[str, Any]:
        """Start the zygote and return its answer about the toolpacks."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The server's settings can contain secrets, so the zygote doesn't receive them.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        with theirs:
            # This command uses no shell and contains no input from clients.
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
            return {"error": "the process that loads them has exited"}
        return answer

    @property
    def process(self) -> int:
        return self._process.pid

    def fork(self, *, again: bool = True) -> "ExecutorProcess | None":
        """Fork an executor.

        Args:
            again: If the zygote has exited, start a new zygote. Otherwise, return None in this case.

        Raises:
            StartError: The new zygote can't be started.
        """
        with self._lock:
            child = self._fork()
            if child is None and again:
                self.close()
                self._start()
                child = self._fork()
            return child

    def _fork(self) -> "ExecutorProcess | None":
        """Request an executor from the zygote, and return its handle. Return None if the zygote has exited.

        The handle is returned before the executor exists, so its user must call `wait_until_ready`.
        """
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
        """Stop the zygote and all its executors."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ExecutorProcess:
    """A worker's handle of one executor, which `Zygote.fork` creates and the pool lends to one request at a time.

    Its blocking methods raise `ExecutorGoneError` if the executor exits.
    """

    def __init__(self, channel: Channel, ended: int, output: Output, zygote: int, expected: Inventory) -> None:
        self._channel = channel
        self._output = output
        self.number = next(_next_number)  # id of the executor, unique in this process
        self.calls = 0  # number of answered requests
        self.clean = True  # the executor has run no function that an agent called
        self.awaits_answer = False  # the last request isn't answered yet
        self._begun = False  # the executor has sent a frame since the last request, so it has begun the request
        self.idle_since = time.monotonic()
        self.retired = False  # the executor must be replaced after this request
        self._ended = ended  # pipe through which the zygote reports the exit status
        self._zygote = zygote
        self._expected = expected
        self._process: int | None = None  # pidfd; None until the executor is ready
        self._poller = select.poll()  # has an event when the executor exits or sends an unexpected frame
        self._speaks = select.poll()  # has an event when the executor answers or prints
        self._speaks.register(channel.fileno(), select.POLLIN)
        self._speaks.register(output.fileno(), select.POLLIN)

    def _greeting(self) -> Mapping[str, Any]:
        """Read the executor's first frame, which the executor sends when it is ready or can't be set up."""
        try:
            return self._channel.receive(allows=lambda sizes: not sizes).head
        except ExecutorGoneError:
            log.error(  # noqa: TRY400 - a traceback would be useless
                "An executor exited while it set up the sandbox or imported the toolpacks: import the library that "
                "opens files or starts threads inside a function, or omit TOOLPACK_EXECUTORS_SANDBOX."
            )
            raise

    def wait_until_ready(self) -> None:
        """Wait until a new executor is ready, and check its greeting. Do nothing if this was done before.

        Raise an `ExecutorGoneError` if the executor can't be set up; the reason is in the log.
        """
        if self._process is not None:
            return
        for times in range(1, MAX_STARTS + 1):
            if self._output.wait_for(self._channel.fileno(), self._speaks, START_SECONDS):
                break
            log.warning("An executor isn't ready after %g s; still waiting.", times * START_SECONDS)
        else:
            raise ExecutorGoneError
        try:
            head = self._greeting()
            if "problem" in head:
                log.error("An executor can't be set up: %s.", printable(shown(str(head["problem"]))))
                raise ExecutorGoneError
            if "inventory" in head and self._expected.difference(Inventory.from_json(head["inventory"])) is not None:
                log.error("The toolpacks can't be used in an executor: %s", DIFFERENT_TOOLPACKS)
                raise ExecutorGoneError
            process = head["process"]
            descriptor = os.pidfd_open(process)
        except (KeyError, OSError, TypeError, ValueError, OverflowError):
            raise ExecutorGoneError from None
        # An untrusted greeting could name any process of the system, but `kill` must kill only the executor. So check
        # that the process is a child of the zygote. If the pidfd's process is still running after this check, the pidfd
        # refers to the checked process.
        if system.parent_of(process) != self._zygote or _is_ready(descriptor):
            os.close(descriptor)
            raise ExecutorGoneError
        self._process = descriptor
        self._poller.register(self._channel.fileno(), select.POLLIN)
        self._poller.register(descriptor, select.POLLIN)

    def ask(self, head: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> None:
        """Send a request, or the data that the executor asked for.

        Raises:
            ExecutorGoneError: The executor has exited. `unread` is true only if it hasn't begun the request.
        """
        self._begun &= self.awaits_answer  # set it to False for a new request; keep it when this supplies data
        self.awaits_answer = True
        try:
            self._channel.send(head, pieces)
        except ExecutorGoneError:
            raise ExecutorGoneError(unread=not self._begun) from None

    def answer(self, allows: Callable[[Sequence[int]], bool]) -> Frame:
        """Wait for a frame: the answer, or a request for data (`need`).

        Args:
            allows: Returns whether the frame may contain pieces of these sizes.

        Raises:
            ExecutorGoneError: The executor has exited. `unread` is true only if it hasn't begun the request.
            ValueError: The data isn't a valid frame.
        """
        self._output.wait_for(self._channel.fileno(), self._speaks)
        try:
            frame = self._channel.receive(orjson.loads, allows)
        except ExecutorGoneError as gone:
            raise ExecutorGoneError(unread=gone.unread and not self._begun) from None
        self._begun = True
        if "need" not in frame.head:
            self.awaits_answer = False
            self.calls += 1
        return frame

    def printed(self, *, rest: bool = False) -> str:
        """Return the text that the executor has printed since the last call of this method, for the log.

        Args:
            rest: First read the remaining output, because the executor might have exited.
        """
        if rest:
            self._output.read()
        return self._output.take()

    def is_alive(self) -> bool:
        """Return whether the executor is running and has sent no unexpected frame."""
        return not self._poller.poll(0)

    def kill(self) -> None:
        """Kill the executor, which wakes the thread that waits for it.

        This doesn't block, and is thread-safe until `close`.
        """
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self._channel.shutdown()

    def exit_reason(self) -> str | None:
        """Return how the executor exited, for example "signal 11".

        Return None if the zygote has also exited, because the executor then didn't crash by itself. If the zygote
        doesn't report a status within `STATUS_SECONDS`, the executor is killed.
        """
        if not _is_ready(self._ended, STATUS_SECONDS):
            self.kill()
            return "without an answer"
        status = os.read(self._ended, 16)
        if not status:
            return None
        return f"exit status {int(status)}" if int(status) >= 0 else f"signal {-int(status)}"

    def close(self) -> None:
        """Kill the executor and release its resources."""
        self.kill()
        self._channel.close()
        self._output.close()
        os.close(self._ended)
        if self._process is not None:
            os.close(self._process)
            self._process = None


def _is_ready(descriptor: int, seconds: float = 0) -> bool:
    """Return whether a descriptor becomes readable within `seconds`.

    A pidfd is readable once its process has exited.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
