"""Trial calls of all functions of toolpacks, in separate processes with a time limit.

If a function loops forever or kills its process, `check` continues with the next function in a new process. Each
process loads the toolpacks itself, just as a worker does, because toolpacks' threads wouldn't survive a fork.
"""

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

from toolpack_author.checking.trial import Trial
from toolpack_server.features.api.stores import shown
from toolpack_server.features.authoring.checking.findings import CheckedFunction, Finding
from toolpack_server.packs.catalog import Catalog
from toolpack_server.processes.child import Child, follow

SECONDS_EACH = 3.0  # time limit of a function
SECONDS = 30.0  # time limit of all functions together

_CALLED, _RETURNED = b"was_called", b"returned"  # sent before and after a call, to measure its time


def try_functions(load: Callable[[], Catalog], functions: Sequence[CheckedFunction]) -> list[Finding]:
    """Call every function and return the findings.

    If the time limit of all functions is over, the last finding says how many functions weren't called.

    Args:
        load: Loads the toolpacks. It is called in each process.
    """
    findings: list[Finding] = []
    end_time = time.monotonic() + SECONDS
    done = 0
    while done < len(functions):
        with _start_child(load, functions[done:]) as child:
            for function in functions[done:]:
                was_called, reply = _receive(child, end_time)
                if reply is None and not was_called and time.monotonic() >= end_time:
                    missing = len(functions) - done
                    text = f"{missing} functions weren't called: the time limit of {SECONDS:g} s is over."
                    return [*findings, Finding("check", text)]
                if isinstance(reply, Finding):
                    return [*findings, reply]
                done += 1
                if reply is None:
                    findings.append(_end_finding(child, function.location))
                    break
                findings += reply
    return findings


def _receive(child: Child, end_time: float) -> tuple[bool, list[Finding] | Finding | None]:
    """Return whether the child called the next function, and the findings on that function.

    The findings are None if the process has exited or takes too long. They are a single `Finding` if the process can't
    call any function.
    """
    was_called, seconds_left = False, end_time - time.monotonic()
    with contextlib.suppress(EOFError, OSError):
        while child.pipe.poll(max(seconds_left, 0)):
            message = child.pipe.recv_bytes()
            seconds_left = end_time - time.monotonic()
            if message == _CALLED:
                was_called, seconds_left = True, min(SECONDS_EACH, seconds_left)
            elif message != _RETURNED:
                return was_called, pickle.loads(message)  # noqa: S301 - the child runs this program's code
    return was_called, None


def _end_finding(child: Child, location: str) -> Finding:
    """Return the finding on a function that didn't return in time, or that killed the process."""
    if child.is_alive() and child.pipe.poll(0):  # readable, so the child has closed its end and is about to exit
        child.wait()
    if child.is_alive():
        return Finding(
            location,
            f"it didn't end within {SECONDS_EACH:g} s when it was called with made-up arguments: set "
            "timeout_seconds, or add examples to the schema that take less time.",
        )
    return Finding(
        location,
        f"it ended the process (status {child.exit_code}), and with it a whole worker of the server: raise an "
        "exception.",
        is_problem=True,
    )


@contextlib.contextmanager
def _start_child(load: Callable[[], Catalog], functions: Sequence[CheckedFunction]) -> Iterator[Child]:
    """Start a process that calls functions, and kill it after the block."""
    parent = os.getpid()

    def run(pipe: Connection) -> int:
        follow(parent)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # otherwise the functions' output would mix with the findings
            os.dup2(null, descriptor)
        # As in a server, functions don't run on the main thread, which has special rights for signals and event loops.
        thread = threading.Thread(target=_try_each, args=(load, functions, pipe))
        thread.start()
        thread.join()
        return 0

    child = Child(run)
    try:
        yield child
    finally:
        child.end()


def _try_each(load: Callable[[], Catalog], functions: Sequence[CheckedFunction], pipe: Connection) -> None:
    """Load the toolpacks in the child process, call each function, and send the findings on each."""
    try:
        trial = Trial(load(), lambda: pipe.send_bytes(_CALLED), lambda: pipe.send_bytes(_RETURNED))
    except Exception as error:  # noqa: BLE001 - reported as a finding
        text = f"functions weren't called, because a new process can't load the toolpacks: {shown(str(error))}"
        pipe.send_bytes(pickle.dumps(Finding("check", text, is_problem=True)))
        return
    try:
        for function in functions:
            pipe.send_bytes(pickle.dumps(trial.run(function.toolpack, function.name)))
    finally:
        trial.close()
