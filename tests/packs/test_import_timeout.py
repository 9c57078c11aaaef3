"""The time limit of imports: it counts the process's CPU time, so a busy machine doesn't cause a timeout."""

import time

import pytest

from toolpack_server.packs import import_timeout as module
from toolpack_server.packs.import_timeout import TimeLimitExceeded, time_limit

pytestmark = pytest.mark.skipif(not hasattr(module.signal, "setitimer"), reason="the system has no timers")


class Machine:
    """A `time` module that gives this process a fixed share of a CPU."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, share):
        self.process_time = lambda: share * time.monotonic()


def go_on(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_import_starved_of_cpu_continues_and_is_logged_as_slow(monkeypatch, caplog):
    monkeypatch.setattr(module, "time", Machine(share=0.05))
    with time_limit(0.05, "its import"):
        go_on(0.4)
    assert caplog.messages[0].startswith("Slow: its import has taken 0 s at ")
    assert f"{__file__}:" in caplog.text


@pytest.mark.parametrize("share", [0.0, 0.001, 1.0, 2.0])
def test_import_that_waits_or_computes_too_long_is_interrupted(monkeypatch, share):
    monkeypatch.setattr(module, "time", Machine(share))
    with pytest.raises(TimeLimitExceeded, match=r"its import takes longer than 0\.05 s at .*: advice\."):  # noqa: SIM117
        with time_limit(0.05, "its import", "advice"):
            go_on(60)


def test_import_with_little_cpu_is_interrupted_at_its_cpu_limit(monkeypatch):
    monkeypatch.setattr(module, "time", Machine(share=0.25))
    with pytest.raises(TimeLimitExceeded), time_limit(0.05, "its import"):
        go_on(60)
