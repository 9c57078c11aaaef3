"""Pinned time and random numbers: equal in every process, and undone afterwards. Each test runs a new process."""

import json
import subprocess
import sys
import textwrap

import pytest
from patience import PATIENCE

BEFORE = """
import json, os, random, secrets, sys, time, uuid
from datetime import date, datetime, timezone, UTC
from random import random as imported_random, choice, randint
from secrets import token_hex
from time import time as imported_time
from uuid import uuid4
from toolpack_server.features.replay.pinned_clock import PinnedClock as Pin, start_ns

imported_now, imported_today = datetime.now, date.today
PIN = Pin(tick=3, seed="a seed", now_ns=1_800_000_000 * 10**9)

def drawn():
    return [
        imported_random(), choice(range(10**9)), randint(1, 10**9), random.gauss(0, 1), random.randbytes(5).hex(),
        random.Random().random(), random.SystemRandom().random(), random.SystemRandom().getrandbits(70),
        secrets.token_hex(), token_hex(4), secrets.randbelow(10**9), secrets.choice(range(10**9)),
        uuid.uuid4().hex, uuid4().hex, os.urandom(3).hex(), os.urandom(200).hex(), random.sample(range(99), 5),
    ]

def looked():
    return [
        imported_time(), time.time_ns(), time.clock_gettime(time.CLOCK_REALTIME), list(time.localtime()),
        list(time.gmtime()), time.strftime("%Y-%m-%d %H:%M:%S %Z"), imported_now().isoformat(),
        imported_now(timezone.utc).isoformat(), datetime.utcnow().isoformat() if sys.version_info < (3, 12) else "",
        datetime.today().isoformat(), imported_today().isoformat(), uuid.uuid1().hex, time.tzname[0],
    ]
"""


def run(code, **environment):
    """Run code in a new process. Return the JSON that it prints."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEFORE + textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PATH": "", "PYTHONPATH": ":".join(filter(None, sys.path)), **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


DRAW_AND_LOOK = """
with PIN.hold():
    found = [looked(), drawn(), looked(), drawn()]
print(json.dumps(found))
"""


@pytest.mark.heavy
def test_pinned_values_are_equal_in_every_process():
    first = run(DRAW_AND_LOOK)
    assert run(DRAW_AND_LOOK, TZ="Asia/Tokyo", PYTHONHASHSEED="7") == first
    assert first[1] != first[3]
    second_draws = "random.seed(5); os.urandom(9); uuid.uuid1(); random.Random(); datetime.now()\n"
    assert run(second_draws + DRAW_AND_LOOK) == first
    in_turn = "with Pin(8, 'another', 10**18).hold():\n    drawn(), looked()\n"
    assert run(in_turn + DRAW_AND_LOOK) == first


def test_drawn_values_depend_on_seed_and_tick():
    drawn = run(
        """
        found = []
        for pin in (Pin(1, "a"), Pin(2, "a"), Pin(1, "b"), Pin(1, "a1"), Pin(11, "a"), Pin(1, ""), Pin(1, "a")):
            with pin.hold():
                found.append(json.dumps(drawn()))
        print(json.dumps(found))
        """
    )
    assert drawn[0] == drawn[-1]
    assert len(set(drawn)) == 6


def test_clock_advances_by_a_microsecond_per_reading():
    readings = run(
        """
        with PIN.hold():
            times = [time.time_ns() for _ in range(1000)]
            floats = [time.time() for _ in range(1000)]
        print(json.dumps([times, floats]))
        """
    )
    times, floats = readings
    assert times == [1_800_000_000 * 10**9 + 1000 * n for n in range(1000)]
    assert floats == sorted({*floats})
    assert floats[0] == 1_800_000_000.001


def test_all_time_functions_read_one_clock():
    looks = run("with PIN.hold():\n    print(json.dumps(looked()))")
    assert looks[0] == 1_800_000_000
    assert looks[1] == 1_800_000_000 * 10**9 + 1000
    assert looks[5] == "2027-01-15 08:00:00 UTC"
    assert looks[6] == "2027-01-15T08:00:00.000006"
    assert looks[7] == "2027-01-15T08:00:00.000007+00:00"
    assert looks[10] == "2027-01-15"
    assert looks[12] == "UTC"


MODULE = """
from toolpack_server.base.module_rngs import module_rngs

made = {"__name__": "made"}
with module_rngs.register():
    exec(
        "import random\\nclass Own(random.Random): pass\\n"
        "DICE, OWN, COINS = random.Random(), Own(), random.Random()\\n"
        "SEEDED, LATER = random.Random(5), random.Random()\\nLATER.seed(5)",
        made,
    )
made["MADE_AFTERWARDS"] = random.Random()

def thrown():
    return {name: made[name].random() for name in made if name.isupper()}
"""


def test_unseeded_generators_of_modules_are_pinned_too():
    code = """
        found = []
        for pin in (PIN, PIN, Pin(4, "a seed"), Pin(3, "another")):
            with pin.hold():
                found.append(thrown())
            found.append(thrown())
        print(json.dumps(found))
        """
    first, second = (run(MODULE + textwrap.dedent(code)) for _ in range(2))
    for name, *drawn in [(name, *(each[name] for each in first)) for name in ("DICE", "OWN", "COINS")]:
        repeated = [each[name] for each in second]
        assert drawn[0] == drawn[2] == repeated[0]
        assert len({*drawn, *repeated[1::2]}) == 11, "equal for one pin, and random again afterwards"
    assert len({first[0][name] for name in ("DICE", "OWN", "COINS")}) == 3
    for name, drawn in (("SEEDED", first), ("LATER", first)):
        assert [each[name] for each in drawn] == [each[name] for each in second]
        assert len({each[name] for each in drawn}) == 8
    assert first[0]["MADE_AFTERWARDS"] != second[0]["MADE_AFTERWARDS"]


def test_forked_processes_draw_different_values():
    code = """
        def in_child():
            reading, writing = os.pipe()
            if os.fork() == 0:
                os.write(writing, json.dumps(thrown()).encode())
                os._exit(0)
            os.wait()
            return json.loads(os.read(reading, 10000))

        one, other = in_child(), in_child()
        print(json.dumps([name for name in one if one[name] != other[name]]))
        """
    assert run(MODULE + textwrap.dedent(code)) == ["DICE", "OWN", "COINS"]


def test_real_time_and_random_numbers_return_afterwards():
    results = run(
        """
        originals = [os.urandom, random._urandom, random.Random.seed, uuid._node, time.time, datetime.now]
        real = time.time()
        zone = os.environ.get("TZ"), time.tzname
        states = []
        for _ in range(2):
            with PIN.hold():
                inside = drawn(), looked()
            states.append(random.getstate()[1][:9])
        for _ in range(2):
            try:
                with PIN.hold():
                    raise SystemExit
            except SystemExit:
                pass
        after = [os.urandom, random._urandom, random.Random.seed, uuid._node, time.time, datetime.now]
        print(json.dumps([
            [a is b or a == b for a, b in zip(originals, after)],
            abs(time.time() - real) < 60,
            (os.environ.get("TZ"), time.tzname) == zone,
            states[0] != states[1],
            imported_now().year < 2027 or real > 1.79e9,
        ]))
        """,
        TZ="Asia/Tokyo",
    )
    assert results == [[True] * 6, True, True, True, True]


def test_seed_or_clock_may_be_pinned_alone():
    results = run(
        """
        real = time.time()
        with Pin(1, "a").hold():
            chance = drawn(), abs(time.time() - real) < 60
        with Pin(1, None, PIN.now_ns).hold():
            clock = time.time(), drawn()
        with Pin(1, None, PIN.now_ns).hold():
            again = time.time(), drawn()
        nothing = abs(time.time() - real) < 60
        with Pin(1, "a").hold():
            chance_again = drawn()
        print(json.dumps([chance[0] == chance_again, chance[1], clock[0] == again[0], clock[1] != again[1], nothing]))
        """
    )
    assert results == [True] * 5


def test_types_are_the_real_ones():
    results = run(
        """
        class Own(datetime): pass
        with PIN.hold():
            made = datetime.now(), Own.now(), date.today(), random.Random(), uuid.uuid4()
            same = isinstance(made[0], datetime), type(made[1]) is Own, type(made[2]) is date
        print(json.dumps([type(made[0]) is datetime, *same, type(made[3]) is random.Random, Own.now().year > 2000]))
        """
    )
    assert results == [True] * 6


def test_explicit_seeds_and_saved_states_are_unaffected():
    results = run(
        """
        expected = random.Random(5).random()
        saved = random.Random(5).getstate()
        with PIN.hold():
            own = random.Random(5).random()
            restored = random.Random(); restored.setstate(saved)
            random.seed(5)
            shared = random.random()
        print(json.dumps([own == expected, restored.random() == expected, shared == expected]))
        """
    )
    assert results == [True] * 3


def test_monotonic_clocks_are_real():
    assert run(
        """
        with PIN.hold():
            began = time.monotonic(), time.perf_counter()
            time.sleep(0.01)
            print(json.dumps(time.monotonic() - began[0] >= 0.009 and time.perf_counter() - began[1] >= 0.009))
        """
    )


@pytest.mark.parametrize(
    ("clock", "step", "tick", "expected"),
    [
        ("2026-03-01T00:00:00+00:00", 1, 0, 1772323200 * 10**9),
        ("2026-03-01T01:00:00.000001+01:00", 1, 5, 1772323205 * 10**9 + 1000),
        ("1900-01-01T00:00:00+00:00", 0, 99, -2208988800 * 10**9),
        ("2026-03-01T00:00:00+00:00", 0.1, 3, 1772323200 * 10**9 + 3 * 10**8),
    ],
)
def test_start_time_of_a_call_follows_from_clock_step_and_tick(clock, step, tick, expected):
    code = f"print(json.dumps(start_ns(datetime.fromisoformat({clock!r}), {step}, {tick})))"
    assert run(code) == expected


def test_pytest_is_not_imported():
    load = "from toolpack_server.features.replay.pinned_clock import load_time_machine; load_time_machine()"
    code = f"{load}; print(json.dumps('pytest' in sys.modules))"
    assert run(code) is False
