"""A function past its deadline is interrupted exactly once, and only in its own code."""

import asyncio
import ctypes
import subprocess
import sys
import threading

import pytest
from serving import PATIENCE, wait_until

from toolpack_server.base.errors import Interrupted
from toolpack_server.base.uninterruptible import uninterruptible
from toolpack_server.engine import interruption
from toolpack_server.engine.interruption import Interruptible, InterruptibleThread
from toolpack_server.engine.pool_thread import interruptible
from toolpack_server.functions.coroutines import close_loop, run_coroutine


class Thread(threading.Thread):
    """Runs a function, and stores its exception."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self._work = target
        self.raised = None
        self.start()

    def run(self):
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.raised = error
        finally:
            close_loop()

    def ended(self):
        self.join(PATIENCE)
        assert not self.is_alive()
        return self.raised


def spin(gate=None):
    while gate is None or not gate.is_set():
        pass


def test_a_loop_is_ended_and_no_code_after_it_runs():
    block, started, after = Interruptible(), threading.Event(), []

    def work():
        with block:
            started.set()
            spin()
        after.append("behind")

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    assert isinstance(thread.ended(), Interrupted)
    assert after == []


def test_a_block_that_is_not_interrupted_ends_as_it_would():
    block = Interruptible()
    for _ in range(3):
        with block:
            pass
    with pytest.raises(KeyError), block:
        raise KeyError
    with block:
        pass


def test_swallowing_the_interruption_only_delays_the_end():
    block, started, gate, swallowed = Interruptible(), threading.Event(), threading.Event(), []

    def work():
        with block:
            try:
                started.set()
                spin(gate)
            except BaseException as error:  # noqa: BLE001 - that is the point
                swallowed.append(error)
            swallowed.append("went on")

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    wait_until(lambda: swallowed, "the exception")
    gate.set()
    assert isinstance(thread.ended(), Interrupted)
    assert isinstance(swallowed[0], Interrupted)
    assert swallowed[1] == "went on"


def test_another_exception_still_ends_as_interrupted():
    block, started = Interruptible(), threading.Event()

    def work():
        with block:
            try:
                started.set()
                spin()
            finally:
                raise ValueError("something else")

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    assert isinstance(thread.ended(), Interrupted)


def test_a_block_entered_after_the_interruption_does_not_run():
    block, ran = Interruptible(), []
    block.interrupt()
    for _ in range(2):
        with pytest.raises(Interrupted), block:
            ran.append("inside")
    assert ran == []


def test_between_two_blocks_nothing_is_raised():
    block, between, gate, numbers = Interruptible(), threading.Event(), threading.Event(), []

    def work():
        with block:
            pass
        between.set()
        spin(gate)
        numbers.extend(range(1000))
        with block:
            numbers.append("inside")

    thread = Thread(work)
    assert between.wait(PATIENCE)
    block.interrupt()
    gate.set()
    assert isinstance(thread.ended(), Interrupted)
    assert numbers == [*range(1000)]


def test_after_the_block_nothing_is_raised():
    block, ended, gate, after = Interruptible(), threading.Event(), threading.Event(), []

    def work():
        with block:
            pass
        ended.set()
        spin(gate)
        after.extend(range(1000))

    thread = Thread(work)
    assert ended.wait(PATIENCE)
    block.interrupt()
    gate.set()
    assert thread.ended() is None
    assert after == [*range(1000)]


def test_an_interruption_at_the_end_hits_the_block_or_nothing():
    for _ in range(300):
        block, started, after = Interruptible(), threading.Event(), []

        def work(block=block, started=started, after=after):
            started.set()
            try:
                with block:
                    pass
            except Interrupted:
                after.append("interrupted")
            # A pending exception would be raised here.
            for _ in range(200):
                after.append("behind")

        thread = Thread(work)
        started.wait(PATIENCE)
        block.interrupt()
        assert thread.ended() is None
        assert after.count("behind") == 200


def test_a_pending_exception_is_cleared_when_the_block_ends(monkeypatch):
    """The interrupter decides to interrupt before the function ends, but raises its exception only afterwards."""
    block, started, gate, order = Interruptible(), threading.Event(), threading.Event(), []
    raise_in = interruption.raise_in

    def slowly(thread, exception):
        gate.set()  # the block ends now …
        wait_until(lambda: waits, "the end of the block")
        order.append(exception)
        raise_in(thread, exception)

    waits = []
    monkeypatch.setattr(interruption, "raise_in", slowly)
    sleep = interruption.time.sleep

    class Time:
        @staticmethod
        def sleep(seconds):
            waits.append(seconds)  # … and waits for the exception
            sleep(seconds)

    monkeypatch.setattr(interruption, "time", Time)
    after = []

    def work():
        try:
            with block:
                started.set()
                gate.wait()
        except Interrupted:
            after.append("interrupted")
        after.append(sum(map(int, "1" * 1000)))

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    assert thread.ended() is None
    assert after == ["interrupted", 1000]
    assert order == [Interrupted]


def test_a_late_exception_is_cleared_after_the_block(monkeypatch):
    requests = []
    monkeypatch.setattr(interruption, "raise_in", lambda *arguments: requests.append(arguments))
    block, ours = Interruptible(), threading.get_ident()
    with pytest.raises(Interrupted), block:
        block.interrupt()  # the exception is never raised
    assert requests == [(ours, Interrupted)]
    with pytest.raises(Interrupted), block:
        pytest.fail("it must not begin")
    block.interrupt()
    assert len(requests) == 1


def test_server_code_in_a_block_ends_before_it_is_interrupted():
    block, started, gate, steps = Interruptible(), threading.Event(), threading.Event(), []

    def work():
        with block:
            with uninterruptible, uninterruptible:
                started.set()
                spin(gate)
                steps.extend(range(1000))
            steps.append("behind")

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    gate.set()
    assert isinstance(thread.ended(), Interrupted)
    assert steps == [*range(1000)]


def test_server_code_begun_after_the_interruption_completes():
    block, started, steps = Interruptible(), threading.Event(), []

    def work():
        with block:
            try:
                started.set()
                spin()
            finally:
                with uninterruptible:
                    steps.extend(range(1000))
                steps.append("behind")

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    assert isinstance(thread.ended(), Interrupted)
    assert steps == [*range(1000)]


def test_a_function_within_server_code_can_be_interrupted():
    block, started, steps = Interruptible(), threading.Event(), []

    def work():
        with block, uninterruptible:
            try:
                with block:
                    started.set()
                    spin()
            finally:
                steps.extend(range(1000))

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    assert isinstance(thread.ended(), Interrupted)
    assert steps == [*range(1000)]


def test_a_step_of_a_loop_is_interrupted_outside_of_server_code():
    block, started, gate, steps = InterruptibleThread(), threading.Event(), threading.Event(), []

    def work():
        uninterruptible.block = block
        with uninterruptible:
            started.set()
            spin(gate)
            steps.extend(range(1000))
        started.set()
        spin()

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt(thread.ident, lambda: True)
    started.clear()
    gate.set()
    assert started.wait(PATIENCE)
    assert steps == [*range(1000)]
    block.interrupt(thread.ident, lambda: False)
    assert thread.is_alive()
    block.interrupt(thread.ident, lambda: True)
    assert isinstance(thread.ended(), Interrupted)


def test_another_thread_is_never_hit():
    block, started, gate, numbers = Interruptible(), threading.Event(), threading.Event(), []

    def other():
        spin(gate)
        numbers.append("whole")

    def work():
        with block:
            started.set()
            spin()

    bystander, thread = Thread(other), Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    assert isinstance(thread.ended(), Interrupted)
    gate.set()
    assert bystander.ended() is None
    assert numbers == ["whole"]


def test_a_function_that_awaits_is_woken_up_to_be_interrupted():
    block, started = Interruptible(), threading.Event()

    async def wait():
        started.set()
        await asyncio.sleep(3600)

    def work():
        with block:
            run_coroutine(wait())

    thread = Thread(work)
    assert started.wait(PATIENCE)
    block.interrupt()
    assert isinstance(thread.ended(), Interrupted)


def test_a_thread_that_runs_no_job_has_nothing_to_interrupt():
    with interruptible():
        pass


# Otherwise the interpreter would keep looking for a missing exception, and a profiled thread would hang.
PROFILED = """
import sys, threading

from toolpack_server.engine.interruption import Interruptible

block = Interruptible()
begun = threading.Event()
threading.Thread(target=lambda: (begun.wait(), block.interrupt())).start()
try:
    with block:
        begun.set()
        while True:
            pass
except BaseException as error:
    print(type(error).__name__)
sys.setprofile(lambda *_: None)
print(sum(each for each in range(10_000)))
"""


def test_a_cleared_exception_leaves_no_trace():
    ended = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, timeout=PATIENCE, check=True)
    assert ended.stdout.split() == [b"Interrupted", b"49995000"]


def test_ctypes_signatures_set_by_libraries_do_no_harm():
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_long(0), None) == 0  # there is no such thread
