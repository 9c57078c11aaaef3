"""Trial calls of all functions of toolpacks, in separate processes with a time limit.

A function may change global state, loop forever or exit: `check` then continues with the next function in a new
process. Each process loads the toolpacks itself, as a worker does, because their threads wouldn't survive a fork.
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

_CALLED, _RETURNED = b"called", b"returned"  # messages around a call: the time between them is the function's


def try_functions(load: Callable[[], Catalog], functions: Sequence[TrialOutcome]) -> list[Finding]:
    """Call every function and return the findings.

    Args:
        load: Loads the toolpacks; called in each process.
    """
    findings: list[Finding] = []
    ends = time.monotonic() + SECONDS
    done = 0
    while done < len(functions):
        with _trying(load, functions[done:]) as child:
            for function in functions[done:]:
                called, answer = _answer(child, ends)
                if answer is None and not called and time.monotonic() >= ends:
                    missing = len(functions) - done
                    text = f"{missing} functions weren't called: the time limit of {SECONDS:g} s is over."
                    return [*findings, Finding("check", text)]
                if isinstance(answer, Finding):
                    return [*findings, answer]
                done += 1
                if answer is None:
                    findings.append(_end(child, function.location))
                    break
                findings += answer
    return findings


def _answer(child: Child, ends: float) -> tuple[bool, list[Finding] | Finding | None]:
    """Return whether the next function was called, and its findings.

    The findings are None if the process has ended or takes too long, and a single `Finding` if it can't call any
    function.
    """
    called, left = False, ends - time.monotonic()
    with contextlib.suppress(EOFError, OSError):
        while child.pipe.poll(max(left, 0)):
            message = child.pipe.recv_bytes()
            left = ends - time.monotonic()
            if message == _CALLED:
                called, left = True, min(SECONDS_EACH, left)
            elif message != _RETURNED:
                return called, pickle.loads(message)  # noqa: S301 - the child runs this program's code
    return called, None


def _end(child: Child, location: str) -> Finding:
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
def _trying(load: Callable[[], Catalog], functions: Sequence[TrialOutcome]) -> Iterator[Child]:
    parent = os.getpid()

    def run(pipe: Connection) -> int:
        follow(parent)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):  # otherwise functions could print among the findings
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


def _try_each(load: Callable[[], Catalog], functions: Sequence[TrialOutcome], pipe: Connection) -> None:
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
