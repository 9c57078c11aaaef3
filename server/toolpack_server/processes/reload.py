"""Parent process of `serve --reload`, which restarts the server when a toolpack's file changes.

The process forks *generations*, child processes that load the toolpacks and then serve. A generation stops only after
the next generation has loaded its toolpacks without problems. So a broken file doesn't stop the server: the error is
printed once, and the previous code stays in use. The port stays open, and connections wait between two generations.

The parent process imports no toolpack, and starts a generation only when a file has changed.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType

from toolpack_server.base.errors import StartError
from toolpack_server.base.settings import Settings
from toolpack_server.base.terminal import echo
from toolpack_server.processes.child import Child, handle_stop, set_up_child
from toolpack_server.processes.file_watch import FileWatch
from toolpack_server.processes.isolated_call import Loaded, load
from toolpack_server.processes.supervisor import STOP_SECONDS

TICK_SECONDS = 0.25
SERVING, GO = b"serving", b"go"  # messages: a generation sends `SERVING`, and its parent sends `GO`

Serve = Callable[[Loaded, Callable[[], None], bool], None]
"""Function that serves toolpacks until SIGTERM.

It receives the toolpacks, a function to call once it serves, and a flag that is True in the first generation.
"""


class Generation(Child):
    """A process that loads the toolpacks, sends their fingerprints, and serves when its parent sends `GO`."""

    def __init__(self, settings: Settings, serve: Serve, *, first: bool) -> None:
        self.fingerprints: Mapping[str, str] | None = None
        self.served = False
        parent = os.getpid()
        super().__init__(lambda pipe: _run_generation(settings, serve, pipe, parent, first=first))

    def look(self) -> None:
        """Read the generation's messages, and update its exit code if it has exited."""
        for message in self.received():
            if message == SERVING:
                self.served = True
            else:
                self.fingerprints = json.loads(message)
        self.is_alive()


def _run_generation(settings: Settings, serve: Serve, pipe: Connection, parent: int, *, first: bool) -> int:
    """Run a generation in the forked process, and return its exit status."""
    try:
        set_up_child(parent, own_group=True)
        # With a bytecode cache, Python wouldn't notice a second change to a file within the same second.
        sys.dont_write_bytecode = True
        loaded = load(settings)
        fingerprints = {name: entry.fingerprint for name, entry in loaded.inventory.toolpacks.items()}
        pipe.send_bytes(json.dumps(fingerprints).encode())
        pipe.recv_bytes()
        serve(loaded, lambda: pipe.send_bytes(SERVING), first)
    except StartError as error:
        echo(f"toolpack-server: {error}", err=True)
        return 1
    except EOFError:  # a newer generation has replaced this one before it served
        return 1
    except BaseException:  # noqa: BLE001 - the process exits here
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


class Reloader:
    """Keeps the newest generation running that has loaded its toolpacks without problems.

    Args:
        watched: The folders that contain the toolpacks' files.
    """

    def __init__(self, settings: Settings, serve: Serve, listener: socket.socket, watched: Sequence[Path]) -> None:
        self._settings = settings
        self._serve = serve
        self._listener = listener
        self._watch = FileWatch(watched)
        self._current: Generation | None = None
        self._next: Generation | None = None
        self._fingerprints: Mapping[str, str] | None = None  # the fingerprints of the generation that served last
        self._signals: list[int] = []

    def run(self) -> None:
        """Serve until a signal arrives. Exit if the first generation that loaded its toolpacks can't serve."""
        handle_stop(self._note_signal)
        try:
            self._begin()
            while not self._signals:
                self._wait()
                self._look()
                changed = self._watch.changed()
                if changed:
                    self._say(f"Changed: {_listed(changed)}.")
                    self._begin()
        finally:
            self._stop()

    def _note_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)

    def _begin(self) -> None:
        """Start a generation. If the previous generation is still loading its toolpacks, kill it."""
        if self._next is not None:
            self._next.end()
        self._next = Generation(self._settings, self._serve, first=self._fingerprints is None)

    def _wait(self) -> None:
        """Wait for a changed file, or for a generation's message or exit, but at most for one tick."""
        running = [child for child in (self._current, self._next) if child is not None and child.exit_code is None]
        if wait([self._watch.pipe, *(child.pipe for child in running)], TICK_SECONDS):
            time.sleep(TICK_SECONDS / 10)  # avoid a busy loop: a closed pipe stays ready until its process has exited

    def _look(self) -> None:
        if self._next is not None:
            self._look_at_next(self._next)
        if self._current is not None:
            self._look_at_current(self._current)

    def _look_at_next(self, following: Generation) -> None:
        """Replace the current generation by the next generation once that has loaded its toolpacks.

        If the next generation has exited instead, print that the server keeps the previous code.
        """
        following.look()
        if following.fingerprints is not None:
            self._end(self._current)  # before `GO`, so that only one generation serves
            following.send(GO)
            self._current, self._next = following, None
        elif following.exit_code is not None:
            following.end()
            self._next = None
            state = "The server continues with the previous code" if self._current else "Nothing is served yet"
            self._say(f"{state}; correct the file.")

    def _look_at_current(self, current: Generation) -> None:
        """Print that the current generation serves, or that it has exited. Exit if no generation has served yet."""
        served = current.served
        current.look()
        if current.served and not served:
            self._tell(current.fingerprints or {})
        if current.exit_code is not None:
            current.end()
            self._current = None
            if self._fingerprints is None:
                sys.exit(1)
            self._say(f"The server ended ({current.wait()}); it starts again when a file changes.")

    def _tell(self, fingerprints: Mapping[str, str]) -> None:
        """Print that a generation serves, and which sessions need a reset.

        Print nothing for the first generation, because it prints by itself that it serves.
        """
        before, self._fingerprints = self._fingerprints, fingerprints
        if before is None:
            return
        self._say(f"Serving {', '.join(fingerprints) or 'no toolpack'}.")
        for toolpack, fingerprint in before.items():
            if fingerprints.get(toolpack, fingerprint) != fingerprint:
                self._say(f"Sessions of {toolpack} need reset_session to version 0: its classes have changed.")

    def _end(self, generation: Generation | None) -> None:
        """Stop a generation after its running calls.

        After a further SIGINT, the generation doesn't wait for running calls. It is killed if it doesn't exit in time.
        """
        if generation is None:
            return
        generation.signal(signal.SIGTERM)
        seconds = self._settings.shutdown_delay_seconds + self._settings.drain_seconds + STOP_SECONDS
        deadline = time.monotonic() + seconds + 1
        hurried = False
        while generation.exit_code is None and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS / 25)
            generation.look()
            if signal.SIGINT in self._signals[1:] and not hurried:
                hurried = True
                generation.signal(signal.SIGINT)
        generation.end()

    def _stop(self) -> None:
        self._listener.close()
        self._watch.end()
        if self._next is not None:
            self._next.end()
        self._end(self._current)

    @staticmethod
    def _say(text: str) -> None:
        echo(f"reload: {text}", err=True)


def _listed(paths: list[str]) -> str:
    shown = [os.path.relpath(path) for path in paths[:3]]
    return ", ".join(shown) + (f" and {len(paths) - len(shown)} more" if len(paths) > len(shown) else "")
