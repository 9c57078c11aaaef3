"""Calls every function of toolpacks once, in a process of its own that is ended when it takes too long.

Whatever a function does to its process (variables, environment variables, an endless loop, an exit), `check`
goes on, with a new process for the next function. Each process loads the toolpacks itself, as a worker does: their
threads wouldn't survive a fork.
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
from toolpack_server.features.authoring.checking.findings import Finding, TrialOutcome
from toolpack_server.packs.catalog import Catalog
from toolpack_server.processes.child import Child, follow

SECONDS_EACH = 3.0
SECONDS = 30.0

_CALLED, _RETURNED = b"called", b"returned"  # between the two the time is the function's, in all other steps ours


def try_functions(load: Callable[[], Catalog], functions: Sequence[TrialOutcome]) -> list[Finding]:
    """Call every function, and get what was found.

    Args:
        load: Loads the toolpacks, in each process anew.
    """
    found: list[Finding] = []
    ends = time.monotonic() + SECONDS
    done = 0
    while done < len(functions):
        with _trying(load, functions[done:]) as child:
            for function in functions[done:]:
                called, answer = _answer(child, ends)
                if answer is None and not called and time.monotonic() >= ends:
                    missing = len(functions) - done
                    text = f"{missing} functions weren't called, because {SECONDS:g} s are over."
                    return [*found, Finding("check", text)]
                if isinstance(answer, Finding):
                    return [*found, answer]
                done += 1
                if answer is None:
                    found.append(_end(child, function.place))
                    break
                found += answer
    return found


def _answer(child: Child, ends: float) -> tuple[bool, list[Finding] | Finding | None]:
    """Get whether the next function was called, and what was found.

    That is None if its process has ended or takes too long, and no list if it can't call any function.
    """
    called, left = False, ends - time.monotonic()
    with contextlib.suppress(EOFError, OSError):
        while child.pipe.poll(max(left, 0)):
            message = child.pipe.recv_bytes()
            left = ends - time.monotonic()
            if message == _CALLED:
                called, left = True, min(SECONDS_EACH, left)
            elif message != _RETURNED:
                return called, pickle.loads(message)  # noqa: S301 - the child is this very program
    return called, None


def _end(child: Child, place: str) -> Finding:
    if child.is_alive() and child.pipe.poll(0):  # its end of the pipe is closed: it is about to end
        child.wait()
    if child.is_alive():
        return Finding(
            place,
            f"it didn't end within {SECONDS_EACH:g} s when it was called with made-up arguments: give it a "
            "timeout_seconds, or examples in the schema that take less.",
        )
    return Finding(
        place,
        f"it ended the process (status {child.exit_code}), and with it a whole worker of the server: raise an "
        "exception.",
        is_problem=True,
    )


@contextlib.contextmanager
def _trying(load: Callable[[], Catalog], functions: Sequence[TrialOutcome]) -> Iterator[Child]:
    parent = os.getpid()

    def run(pipe: Connection) -> int:
        follow(parent)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # what functions print would be taken for findings
            os.dup2(null, descriptor)
        # As in a server, functions don't run on the main thread, which alone may set signals and has an event loop.
        thread = threading.Thread(target=_try_each, args=(load, functions, pipe))
        thread.start()
        thread.join()
        return 0

    child = Child(run)
    try:
        yield child
    finally:
        child.end()


def _try_each(load: Callable[[], Catalog], functions: Sequence[TrialOutcome], pipe: Connection) -> None:
    try:
        trial = Trial(load(), lambda: pipe.send_bytes(_CALLED), lambda: pipe.send_bytes(_RETURNED))
    except Exception as error:  # noqa: BLE001 - it is said, and the process ends
        text = f"functions weren't called, as the toolpacks can't be loaded by each worker anew: {shown(str(error))}"
        pipe.send_bytes(pickle.dumps(Finding("check", text, is_problem=True)))
        return
    try:
        for function in functions:
            pipe.send_bytes(pickle.dumps(trial.run(function.toolpack, function.name)))
    finally:
        trial.close()
