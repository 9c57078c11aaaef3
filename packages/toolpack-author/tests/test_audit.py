"""`toolpack-server audit`, which finds tasks that an agent can cheat, and checks that measure nothing."""

import json
import os
import re

import pytest
import serving
from command_line import invoke
from serving import PACKS

from toolpack_author.audit import command, processes
from toolpack_author.audit.auditing import AuditOptions
from toolpack_author.audit.processes import AuditSettings, audit_tasks, task_names
from toolpack_author.audit.values import is_spoken_in
from toolpack_author.audit.worlds import DIFFERENT, EQUAL, MARKS, difference
from toolpack_server.base.errors import SettingsError
from toolpack_server.base.settings import Settings, read_settings
from toolpack_server.features.evaluation.tasks.finding import all_tasks
from toolpack_server.packs.loading import load_catalog
from toolpack_server.processes import child

CATALOG = load_catalog((PACKS,), ("library",))
LIBRARY = Settings(store="memory:", pack_dir=(PACKS,), packs=("library",))
FAULTS = {(task.name, kind) for _, task in all_tasks(CATALOG) for kind in task.metadata["faults"]}


def audited(settings, seed=0, pattern="", **options):
    names = [name for name in task_names(settings) if pattern in name]
    reports = audit_tasks(settings, names, AuditOptions(**{"mutants": 120, "seed": seed, "ignore": (), **options}))
    return {name.partition("/")[2]: report for name, report in reports}


@pytest.fixture(scope="module")
def library():
    return audited(LIBRARY)


def faults(reports):
    return {(name, each["kind"]) for name, report in reports.items() for each in report["findings"] if each["fault"]}


def test_library_has_enough_known_faults():
    assert len({name for name, _ in FAULTS}) >= 25
    assert len({kind for _, kind in FAULTS}) >= 8
    assert sum(task.name.startswith("sound-") for _, task in all_tasks(CATALOG)) >= 12


def test_known_faults_are_found_and_no_others(library):
    assert faults(library) == FAULTS


@pytest.mark.heavy
def test_other_seeds_find_the_same_faults(library):
    again = audited(LIBRARY, seed=7, mutants=60)
    again_faults = faults(again)
    assert len(again_faults & FAULTS) >= 0.9 * max(len(again_faults), len(FAULTS))
    calls = [[finding["calls"] for finding in report["findings"]] for report in again.values()]
    assert calls != [[finding["calls"] for finding in report["findings"]] for report in library.values()]


def test_findings_of_a_task_do_not_depend_on_other_tasks(library):
    assert audited(LIBRARY, pattern="/any-") == {name: library[name] for name in library if name.startswith("any-")}


def test_passing_attempts_pass_over_an_agents_address_too(library):
    with serving.Bench(CATALOG) as bench:
        for name, report in library.items():
            for finding in report["findings"]:
                if not finding["text"].startswith("passes: "):
                    continue
                session = bench.rpc("create_session", task=f"library/{name}")
                key = session["agent_path"].removeprefix("/agents/")
                for call in finding["calls"]:
                    bench.rpc("run_function", agent_key=key, **call)
                if finding["answer"]:
                    bench.rpc("submit_answer", agent_key=key, answer=finding["answer"])
                assert bench.rpc("evaluate_session", session_id=session["session_id"])["passed"], (name, finding)


def test_fewest_calls_of_a_passing_solution_are_reported(library):
    assert library["third"]["minimal"] == [0, 1]
    assert library["sound-both"]["minimal"] == [0, 1]
    assert library["sound-read-first"]["minimal"] == [1]


@pytest.mark.heavy
def test_bundled_tasks_have_no_faults():
    reports = audited(Settings(store="memory:", packs=("bank", "workspace", "errands")))
    assert len(reports) == 43
    assert faults(reports) == set()


def test_tasks_with_databases_and_files_are_audited():
    settings = Settings(store="memory:", packs=("office",))
    reports = audited(settings, pattern="record-payment", mutants=10)
    assert reports["record-payment"]["attempts"]["nothing"] == [1, 0]
    assert faults(reports) == set()


def test_attempts_at_worlds_that_move_run_in_sessions():
    settings = Settings(store="memory:", packs=("errands",))
    reports = audited(settings, pattern="swim-lane", mutants=20)
    assert reports["swim-lane"]["minimal"] == [0, 1]
    assert reports["swim-lane"]["attempts"]["omit"] == [2, 0]
    assert reports["swim-lane"]["findings"] == []


@pytest.mark.heavy
def test_agentdojo_tasks_that_pass_without_calls_are_found():
    pytest.importorskip("agentdojo")
    reports = audited(Settings(store="memory:", packs=("agentdojo-banking",)), pattern="/user_task_1", mutants=1)
    assert faults(reports) == {("user_task_10", "nothing-passes")}  # a finding even though its `nop_passes` declares it


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": [1, {"b": True}]}, {"a": [1, {"b": True}]}, EQUAL),
        ({"a": [1, {"b": True}]}, {"a": [1, {"b": False}]}, MARKS),
        ({"a": [1, {"b": True}]}, {"a": [2, {"b": False}]}, DIFFERENT),
        ({"a": 1}, {"a": 1, "b": False}, DIFFERENT),
        ({"a": 1}, {"a": True}, DIFFERENT),
        ({"a": []}, {"a": [False]}, DIFFERENT),
    ],
)
def test_difference_of_worlds_tells_marks_from_other_changes(one, other, found):
    assert difference(one, other) == found


@pytest.mark.parametrize(("asked", "found"), [((), MARKS), ({"b"}, DIFFERENT), ({"a"}, MARKS)])
def test_boolean_that_the_prompt_asks_for_is_no_mark(asked, found):
    assert difference({"a": [{"b": True}]}, {"a": [{"b": False}]}, asked) == found


@pytest.mark.parametrize(
    ("prompt", "name", "found"),
    [
        ("Mark it as paid.", "is_paid", True),
        ("Complete the task.", "completed", True),
        ("Read the mail.", "unread", False),
        ("Pay it.", "paidOff", False),
        ("Is it?", "is", False),
    ],
)
def test_names_of_fields_are_recognized_in_the_prompt(prompt, name, found):
    assert is_spoken_in(prompt, name) == found


HOUSE = """
from typing import Annotated
from pydantic import BaseModel
from toolpack_server import Depends, Task, TaskEnvironment, Toolpack, reached_solution

class Lamp(BaseModel):
    on: bool = False
    dusted: bool = False
    looked_at: bool = False

class House(TaskEnvironment):
    lamps: dict[str, Lamp] = {"hall": Lamp(), "yard": Lamp()}
    guests: list[str] = ["Ada"]
    cellar: dict[str, list[str]] = {"wine": ["red"]}

toolpack = Toolpack("house", House)
Whole = Annotated[House, Depends(lambda house: house)]

@toolpack.function
def switch(house: Whole, name: str, on: bool) -> str:
    '''Switch a lamp.

    :param name: Which.
    :param on: On, or off.
    '''
    house.lamps[name].on = on
    return name

@toolpack.function
def dust(house: Whole, name: str) -> None:
    '''Dust a lamp.

    :param name: Which.
    '''
    house.lamps[name].dusted = True

@toolpack.function
def look_at(house: Whole, name: str) -> str:
    '''Look at a lamp.

    :param name: Which.
    '''
    house.lamps[name].looked_at = True
    return "a lamp"

@toolpack.function
def invite(house: Whole, guest: str) -> None:
    '''Invite a guest.

    :param guest: Whom.
    '''
    house.guests.append(guest)

def bob_comes(rollout):
    rollout.check("Bob comes", "Bob" in rollout.environment.guests)
    rollout.check("the cellar is as before", rollout.environment.cellar == {"wine": ["red"]})
    rollout.check("always", True)

INVITED = ("invite", {"guest": "Bob"})
for name, prompt, call in [
    ("chosen", "Light the hall, and invite Bob.", ("switch", {"name": "hall", "on": True})),
    ("spoken", "I want the hall lamp dusted, and Bob invited.", ("dust", {"name": "hall"})),
    ("by-the-way", "Tell Bob that he is invited.", ("dust", {"name": "hall"})),
    ("looked-at", "The lamp that I looked at yesterday is nice. Invite Bob.", ("look_at", {"name": "hall"})),
]:
    toolpack.add_task(Task(name, prompt, bob_comes, solution=[call, INVITED]))
"""


def test_required_marks_and_guards_are_not_reported(tmp_path):
    (tmp_path / "house.py").write_text(HOUSE)
    reports = audited(Settings(store="memory:", pack_dir=(tmp_path,), packs=("house",)))
    kinds_by_name = {
        name: {(each["kind"], each["fault"]) for each in report["findings"]} for name, report in reports.items()
    }
    unneeded = {name: ("call-unneeded", True) in kinds for name, kinds in kinds_by_name.items()}
    assert unneeded == {"chosen": True, "spoken": True, "by-the-way": False, "looked-at": False}
    assert ("call-unneeded", False) in kinds_by_name["by-the-way"] & kinds_by_name["looked-at"]
    for report in reports.values():
        assert [each["about"] for each in report["findings"] if each["kind"] == "dead-check"] == ["always"]


SHELVES = """
from typing import Annotated
from toolpack_server import Database, Depends, Files, TaskEnvironment, Toolpack

class Shelves(TaskEnvironment):
    db: Database = Database("CREATE TABLE book (t TEXT); CREATE TABLE guest (n TEXT); INSERT INTO guest VALUES ('Ada')")
    papers: Files = Files({"notes/one.txt": "one"})

toolpack = Toolpack("shelves", Shelves)

@toolpack.function
def put(db: Annotated[Database, Depends("db")], title: str) -> None:
    '''Put a book there.

    :param title: Its title.
    '''
    with db.connect() as books:
        books.execute("INSERT INTO book VALUES (?)", (title,))

@toolpack.task("put", "Put Emma there.", solution=[("put", {"title": "Emma"})])
def emma(rollout):
    after = rollout.environment
    books, guests = ([*after.db.connect().execute(f"SELECT * FROM {name}")] for name in ("book", "guest"))
    rollout.check("Emma is there", books == [("Emma",)])
    rollout.check("the guests are as before", guests == [("Ada",)])
    rollout.check("the papers are as before", after.papers.is_file("notes/one.txt"))
    rollout.check("always", True)
"""


def test_guards_of_tables_and_files_are_no_dead_checks(tmp_path):
    (tmp_path / "shelves.py").write_text(SHELVES)
    (report,) = audited(Settings(store="memory:", pack_dir=(tmp_path,), packs=("shelves",))).values()
    assert [each["about"] for each in report["findings"] if each["kind"] == "dead-check"] == ["always"]


TILL = """
from datetime import datetime
from decimal import Decimal
from typing import Annotated
from toolpack_server import Depends, TaskEnvironment, Toolpack, says

class Till(TaskEnvironment):
    booked: list[tuple[Decimal, datetime]] = []

toolpack = Toolpack("till", Till)

@toolpack.function
def book(till: Annotated[Till, Depends(lambda till: till)], amount: Decimal, at: datetime) -> int:
    '''Book an amount.

    :param amount: How much.
    :param at: When.
    '''
    till.booked.append((amount, at))
    return len(till.booked)

SOLUTION = [("book", {"amount": "955.00", "at": "2026-03-05T10:00"})]

@toolpack.task("sound", "Book 955 euros, and say so.", solution=SOLUTION, answer="1955.50 and Ada")
def sound(rollout):
    rollout.check("booked", rollout.environment.booked[-1:] == [(Decimal(955), datetime(2026, 3, 5, 10))])
    rollout.check("said", says(rollout.answer, "1955.50 and Ada"))

@toolpack.task("spelled", "Book 955 euros, and say so.", solution=SOLUTION, answer="1955.50")
def spelled(rollout):
    rollout.check("booked", [str(amount) for amount, _ in rollout.environment.booked] == ["955.00"])
    rollout.check("said", says(rollout.answer, "1955.50"))

@toolpack.task("within", "Book 955 euros, and say so.", solution=SOLUTION, answer="1955.50")
def within(rollout):
    rollout.check("booked", [amount for amount, _ in rollout.environment.booked] == [955])
    rollout.check("said", "1955.50" in rollout.answer)

@toolpack.task("word", "Who?", solution=[], answer="Ada")
def word(rollout):
    return "Ada" in rollout.answer
"""


def test_refused_spellings_and_embedded_answers_are_reported(tmp_path):
    (tmp_path / "till.py").write_text(TILL)
    reports = audited(Settings(store="memory:", pack_dir=(tmp_path,), packs=("till",)))
    audited_kinds = {"spelling-refused", "answer-within"}
    findings = {
        (name, each["kind"], each["fault"], each["about"])
        for name, report in reports.items()
        for each in report["findings"]
        if each["kind"] in audited_kinds
    }
    assert findings == {
        ("spelled", "spelling-refused", True, "calls"),
        ("within", "spelling-refused", False, "answer"),
        ("within", "answer-within", False, ""),
        ("word", "answer-within", False, ""),
    }
    (finding,) = [each for each in reports["spelled"]["findings"] if each["kind"] == "spelling-refused"]
    assert finding["calls"] == [{"function": "book", "kwargs": {"amount": 955, "at": "2026-03-05T10:00:00"}}]


# Toolpacks with harmful code

HEAD = '''
"""A counter."""

import itertools, os, time, uuid
from typing import Annotated
from toolpack_server import Depends, TaskEnvironment, Toolpack


class Counter(TaskEnvironment):
    count: int = 0
    log: list[str] = []


toolpack = Toolpack("counter", Counter)
Whole = Annotated[Counter, Depends(lambda counter: counter)]


@toolpack.function
def press(counter: Whole, times: int) -> int:
    """Press it.

    :param times: How often.
    """
    counter.count += times
    counter.log.append(LOGGED)
    return counter.count


@toolpack.function
def wait(seconds: float) -> None:
    """Wait.

    :param seconds: How long.
    """
    time.sleep(seconds)


def pressed(rollout):
    return rollout.environment.count == 3


for number in "12":
    toolpack.task(f"sound-{number}", "Press it 3 times.", solution=[("press", {"times": 3})])(pressed)
'''
SECOND = """

@toolpack.task("bad", "Press it 3 times.", solution=[("press", {"times": 3})], timeout_seconds=1)
def bad(rollout):
    if rollout.environment.count not in (0, 3):
        BODY
    return pressed(rollout)


toolpack.task("sound-3", "Press it 3 times.", solution=[("press", {"times": 3})])(pressed)
"""


def counter(tmp_path, body="", logged="'pressed'"):
    source = HEAD.replace("LOGGED", logged) + (SECOND.replace("BODY", body) if body else "")
    (tmp_path / "counter.py").write_text(source)
    return Settings(store="memory:", pack_dir=(tmp_path,), packs=("counter",)).give(AuditSettings(memory_bytes=2**28))


def test_memory_limit_out_of_range_is_rejected(monkeypatch):
    monkeypatch.setenv("TOOLPACK_AUDIT_MEMORY_BYTES", "9" * 30)
    with pytest.raises(SettingsError, match="TOOLPACK_AUDIT_MEMORY_BYTES: Input should be less than or equal to"):
        read_settings(AuditSettings)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("os._exit(3)", r"the evaluator, after \w+ ended the process \(status 3\)"),
        ("return len(bytearray(2**30)) < 1", "failed: MemoryError"),
        ("while True: pass", "took longer than 1 s."),
        ("raise SystemExit", "failed: SystemExit"),
    ],
)
def test_crashing_evaluator_fails_only_its_own_task(tmp_path, body, text):
    reports = audited(counter(tmp_path, body))
    assert [*reports] == ["sound-1", "sound-2", "bad", "sound-3"]
    assert faults(reports) == {("bad", "evaluator-fails")}
    (finding,) = [each for each in reports["bad"]["findings"] if each["fault"]]
    assert re.search(text, finding["text"])


def test_uninterruptible_evaluator_is_killed_with_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    stubborn = "\n        while True:\n            try: time.sleep(9)\n            except BaseException: pass"
    reports = audited(counter(tmp_path, stubborn))
    assert faults(reports) == {("bad", "evaluator-fails")}
    assert "took longer than 1 s and can't be interrupted" in reports["bad"]["findings"][0]["text"]
    assert reports["sound-3"]["attempts"]["nothing"] == [1, 0]


def test_evaluator_that_closes_open_files_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "END_SECONDS", 0.5)
    stubborn = "\n        while True:\n            try: time.sleep(9)\n            except BaseException: pass"
    reports = audited(counter(tmp_path, f"\n        os.closerange(3, 1000){stubborn}"))
    assert faults(reports) == {("bad", "evaluator-fails")}
    assert "ended the process (killed, as it had closed its open files)" in reports["bad"]["findings"][0]["text"]
    assert reports["sound-3"]["attempts"]["nothing"] == [1, 0]


def test_audit_pins_clock_and_random_values(tmp_path):
    settings = counter(tmp_path, "pass", "f'{uuid.uuid4()} {time.time()}'")
    with (tmp_path / "counter.py").open("a") as file:  # so that no call that only reads counts as unneeded
        file.write(
            "\n\n@toolpack.function\ndef look(counter: Whole) -> int:\n    'See it.'\n    return counter.count\n\n\n"
            "toolpack.task('look', 'Press it 3 times.', solution=[('look', {}), ('press', {'times': 3})])(pressed)\n"
        )
    reports = audited(settings)
    assert faults(reports) == set()
    assert not {each["kind"] for each in reports["look"]["findings"]} & {"call-unneeded", "repeat-unnoticed"}
    assert audited(settings) == reports


def test_client_calls_are_not_attributed_to_the_agent(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "HASH_SEEDS", ("1", "2"))
    counter(tmp_path)
    with (tmp_path / "counter.py").open("a") as file:
        file.write(
            "\n\n@toolpack.function\ndef next_turn(counter: Whole) -> int:\n    'Go on.'\n"
            "    counter.log.append('turn')\n    return len(counter.log)\n\n\n"
            "def turned(rollout):\n    by = [(call.function, call.by) for call in rollout.calls]\n"
            "    return pressed(rollout) and by == [('press', 'agent'), ('next_turn', 'client'), ('press', 'agent')]\n"
            "\n\ntoolpack.task('turns', 'Press it 2 times, then 1.', functions=['press'], solution=["
            "('press', {'times': 2}), ('next_turn', {}), ('press', {'times': 1})])(turned)\n"
        )
    words = ("audit", "--pack-dir", tmp_path, "--packs", "counter", "--task", "*/turns", "--json", tmp_path / "r.json")
    assert "counter/turns: fault: hidden-function: call 2 of its solution, next_turn, fails" in invoke(*words).stdout
    assert invoke(*words, "--client", "next_turn").exit_code == 0
    report = json.loads((tmp_path / "r.json").read_text())["tasks"]["counter/turns"]
    assert report["minimal"] == [0, 1, 2]
    assert report["attempts"]["omit"] == [2, 0]  # counts only the agent's calls, not the client's


# The command line


def run(tmp_path, *words, **parts):
    counter(tmp_path, **parts)
    where = ("--pack-dir", str(tmp_path), "--packs", "counter", "--no-hash-seeds")
    return invoke("audit", *where, *map(str, words), standalone_mode=False)


FAULT = "raise KeyError"


def test_audit_prints_findings_and_their_counts(tmp_path):
    done = run(tmp_path, "--json", tmp_path / "report.json", body=FAULT)
    assert done.exit_code == 1, done.stderr
    *findings, last = done.stdout.splitlines()
    assert next(each for each in findings if ": fault: " in each).startswith("counter/bad: fault: evaluator-fails: ")
    report = json.loads((tmp_path / "report.json").read_text())
    assert [*report] == ["format", "seed", "attempts", "seconds", "tasks"]
    assert (report["format"], report["seed"], len(report["tasks"])) == ("audit-1", 0, 4)
    assert [*report["tasks"]["counter/bad"]] == ["attempts", "minimal", "findings"]
    tried = sum(tried for each in report["tasks"].values() for tried, _ in each["attempts"].values())
    assert last.startswith(f"4 tasks, {tried} attempts in ")
    assert last.endswith("/s): 1 with faults, 0 with weaknesses only.")


def test_known_findings_do_not_count(tmp_path):
    known = tmp_path / "known.json"
    assert run(tmp_path, "--json", known, "--fail-on", "never", body=FAULT).exit_code == 0
    done = run(tmp_path, "--known", known, "--fail-on", "weakness", body=FAULT)
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)
    assert done.stdout.endswith(": 0 with faults, 0 with weaknesses only.\n")
    report = json.loads(known.read_text())
    report["tasks"]["counter/bad"]["findings"] = []
    known.write_text(json.dumps(report))
    done = run(tmp_path, "--known", known, "--task", "*/bad", body=FAULT)
    assert done.exit_code == 1
    assert "counter/bad: fault: evaluator-fails: " in done.stdout
    assert run(tmp_path, "--known", known, "--task", "*/sound-*").exit_code == 0
    known.write_text(json.dumps(report | {"format": "audit-2"}))
    refused = run(tmp_path, "--known", known)
    assert f"--known {known} has the format audit-2, this version reads audit-1: audit again" in str(refused.exception)


def test_fail_on_determines_the_exit_status():
    words = ("audit", "--pack-dir", PACKS, "--packs", "library", "--task", "library/sound-both", "--no-hash-seeds")
    done = invoke(*words)
    assert done.exit_code == 0
    assert "library/sound-both: weakness: harm-unnoticed: passes: the whole solution, then " in done.stdout
    assert invoke(*words, "--fail-on", "weakness").exit_code == 1
    without = invoke(*words, "--fail-on", "weakness", "--ignore", "/library")
    assert (without.exit_code, without.stdout.count("\n")) == (0, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "x"), "There is no task that matches 'x': list_tasks shows all tasks."),
        (("--known", "counter.py"), "--known counter.py isn't a report of audit: give a file that --json wrote."),
        (("--known", "none.json"), "--known none.json isn't a report of audit: give a file that --json wrote."),
        (("--known", "deep.json"), "--known deep.json isn't a report of audit: give a file that --json wrote."),
        (("--ignore", "log"), "--ignore 'log' isn't a JSON Pointer: write one such as /bank/log."),
        (("--json", "none/report.json"), "The report can't be written to none/report.json: No such file or directory."),
    ],
)
def test_audit_rejects_wrong_arguments(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    done = run(tmp_path, *words)
    assert (done.exit_code, done.exception.exit_code) == (1, 2)
    assert done.exception.format_message() == message


def test_toolpack_that_cannot_be_loaded_fails_the_audit(tmp_path):
    (tmp_path / "counter.py").write_text("import nothing_of_this_name\n")
    done = invoke("audit", "--pack-dir", str(tmp_path), "--packs", "counter", standalone_mode=False)
    assert done.exception.exit_code == 2
    assert "nothing_of_this_name" in done.exception.format_message()
    (tmp_path / "counter.py").write_text(HEAD.replace("LOGGED", "''") + "\n@toolpack.tasks\ndef all():\n    1 / 0\n")
    done = invoke("audit", "--pack-dir", str(tmp_path), "--packs", "counter", standalone_mode=False)
    assert "`all` failed: ZeroDivisionError" in done.exception.format_message()


@pytest.mark.parametrize("where", ["os.getpid() != int(os.environ['FIRST'])", "'PYTHONHASHSEED' in os.environ"])
def test_failed_import_in_an_audit_process_is_no_fault_of_a_task(tmp_path, monkeypatch, where):
    """An import may fail by itself: on a busy machine, the import of a library may exceed the time limit."""
    monkeypatch.setattr(processes, "HASH_SEEDS", ("1",))
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    counter(tmp_path)
    names = task_names(Settings(store="memory:", pack_dir=(tmp_path,), packs=("counter",)))
    monkeypatch.setattr(command, "task_names", lambda _settings: names)
    monkeypatch.setenv("FIRST", str(os.getpid()))
    with (tmp_path / "counter.py").open("a") as file:
        file.write(f"\n\nif {where}:\n    raise OSError('it takes too long')\n")
    done = invoke("audit", "--pack-dir", str(tmp_path), "--packs", "counter", standalone_mode=False)
    assert done.exception.exit_code == 2
    assert "it takes too long" in done.exception.format_message()
    assert "fault" not in done.stdout


def test_task_whose_session_cannot_be_created_is_a_fault(tmp_path):
    (tmp_path / "counter.py").write_text(
        HEAD.replace("LOGGED", "''")
        + "\nfrom toolpack_server import Task\ntoolpack.add_task(Task('x', 'Do it.', toolpacks={'none': {}}))\n"
    )
    reports = audited(Settings(store="memory:", pack_dir=(tmp_path,), packs=("counter",)), pattern="/x")
    assert faults(reports) == {("x", "session-refused")}
    assert "'none'" in reports["x"]["findings"][0]["text"]


def test_evaluator_that_depends_on_set_order_is_unstable(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "HASH_SEEDS", ("1", "2"))
    counter(tmp_path)
    with (tmp_path / "counter.py").open("a") as file:
        file.write(
            "\n\n@toolpack.task('set', 'Press it 3 times.', solution=[('press', {'times': 3})])\n"
            "def ordered(rollout):\n    rollout.check(''.join({*'abcdefghijkl'}), pressed(rollout))\n"
            "\n\n@toolpack.task('measured', 'Press it 3 times.', solution=[('press', {'times': 3})])\n"
            "def measured(rollout):\n    from toolpack_server import Evaluation\n"
            "    return Evaluation(float(pressed(rollout)), metrics={'order': [*{*'abcdefghijkl'}]})\n"
        )
    done = invoke("audit", "--pack-dir", tmp_path, "--packs", "counter", "--task", "*/[sm]*")
    for name in ("set", "measured"):
        assert f"counter/{name}: fault: unstable: processes with other hash seeds give other verdicts" in done.stdout
    assert "counter/sound-1: fault" not in done.stdout
