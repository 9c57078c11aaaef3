"""Executors, the processes that run a toolpack's code: a fault affects neither the worker nor other sessions."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
import server_process
import serving
from serving import PACKS, PATIENCE, refused, wait_until

from toolpack_server.base.errors import StartError
from toolpack_server.engine import jobs, lanes, threads
from toolpack_server.features.executors import pool
from toolpack_server.features.executors.child import ExecutorProcess
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.features.executors.system import parent_of
from toolpack_server.observability.exposition import exposition
from toolpack_server.packs.loading import load_catalog

PACK_NAMES = ("ledger", "rough")
CATALOG = load_catalog((PACKS,), PACK_NAMES)


rough_bench = partial(serving.Bench, CATALOG, isolation="process", pack_dir=(PACKS,), packs=PACK_NAMES)


@pytest.fixture(scope="module")
def shared():
    """Yield a server with executors that all tests of the module share."""
    with rough_bench(of_features=[ExecutorsSettings(memory_bytes=400 * 2**20)]) as server:
        yield server


def executors(bench):
    """Return the metrics of executors: how many started, how many ended by reason, and their states."""
    bench.service.runner.end_unused()  # This also updates the metrics of executors.
    numbers = {}
    for line in exposition(bench.service.metrics, None).decode().splitlines():
        if line.startswith("toolpack_executors"):
            name, _, value = line.rpartition(" ")
            numbers[name.removeprefix("toolpack_executors")] = int(float(value))
    return numbers


def ended_count(bench, why):
    return executors(bench)[f'_ended_total{{why="{why}"}}']


def is_running(process):
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def waiting_call(bench, session_id, folder):
    """Begin a call that waits for a long time. Return the future of its answer when the function has begun."""
    started = folder / "begun"
    call = bench.later_call(session_id, "wait", begun=str(started))
    wait_until(started.exists)
    return call


def goes_on(bench, session_id, marks=()):
    assert bench.result(session_id, "mark", text="after") == [*marks, "after"]


WAYS_TO_END = {"exit": "exit status 3", "crash": "signal 11", "kill": "signal 9", "close": "exit status 1"}


@pytest.mark.parametrize("how", WAYS_TO_END)
def test_function_that_ends_its_process_fails_alone(shared, how):
    session_id = shared.create("rough")
    shared.result(session_id, "mark", text="before")
    crashed = ended_count(shared, "crashed")
    text = f"CrashedError: `ends` ended its process ({WAYS_TO_END[how]}); nothing has changed."
    assert shared.call(session_id, "ends", {"call_id": "once"}, how=how) == {"result": "", "error": text}
    assert ended_count(shared, "crashed") == crashed + 1
    # The record answers the repeated call.
    assert shared.call(session_id, "ends", {"call_id": "once"}, how=how)["error"] == text
    assert ended_count(shared, "crashed") == crashed + 1
    goes_on(shared, session_id, ["before"])
    records = shared.rpc("get_trace", session_id=session_id)
    assert [(record["function"], record["error"], record["version"]) for record in records] == [
        ("mark", None, 1),
        ("ends", text, 1),
        ("mark", None, 2),
    ]


def test_crash_is_a_function_error_with_raise_on_error(shared):
    session_id = shared.create("rough")
    error = refused(-32002, shared.call, session_id, "ends", {"raise_on_error": True}, how="exit")
    assert error.message == "`ends` ended its process (exit status 3); nothing has changed."
    assert error.data == {"type": "CrashedError"}


FORGED = [
    *("nonsense", "no answer", "long head", "long result", "long part", "many parts", "long error", "long traceback"),
    *("another's error", "another's part", "unknown names", "unknown refusal"),
]


@pytest.mark.parametrize("how", FORGED)
def test_executor_that_sends_invalid_frames_is_ended(shared, how):
    session_id = shared.create("rough")
    assert shared.call(session_id, "forge", how=how)["error"] == (
        "CrashedError: `forge` made its process unusable; nothing has changed."
    )
    goes_on(shared, session_id)


def test_well_formed_forged_frame_is_accepted(shared):
    assert shared.result(shared.create("rough"), "forge", how="nothing") == "forged"


def test_executor_can_accuse_only_the_function_that_it_runs(shared):
    session_id = shared.create("rough")
    for function in ("process", "mark", "there is none"):
        assert shared.call(session_id, "accuse", function=function)["error"] == (
            "CrashedError: `accuse` made its process unusable; nothing has changed."
        )
    shared.result(session_id, "process")
    assert shared.version(session_id) == 0  # The accused function still counts as read-only.


def test_forged_text_is_shortened_and_adds_no_log_line(shared, caplog):
    session_id = shared.create("rough")
    shared.call(session_id, "forge", how="unknown refusal")
    refused(-32603, shared.call, session_id, "forge", how="fault")
    texts = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(texts) == 3  # The third is the log line of the failed request.
    for text in texts:
        assert len(text) < 32_000
        assert "\nFORGED" not in text


def printed_messages(caplog):
    return [text for text in caplog.messages if " printed:" in text]


def test_output_of_a_function_is_logged_with_its_name(shared, caplog):
    caplog.set_level("INFO")
    session_id = shared.create("rough")
    # "p" means a pipe: the function doesn't write to the server's output.
    assert shared.result(session_id, "say", text="one\n\ttwo\n") == "pp"
    shared.result(session_id, "process")
    shared.call(session_id, "say", text="last words", end="exit")
    assert printed_messages(caplog) == [
        "`say` printed:\n  one\n  \\ttwo\n  \n  and this",
        "`say` printed:\n  last words\n  and this",
    ]


def test_output_of_a_function_cannot_imitate_a_log_line(shared, caplog):
    caplog.set_level("INFO")
    shared.result(shared.create("rough"), "say", text='{"level":"info"}\r\n\x1b[2J\u2028{"level":"error"}')
    (text,) = printed_messages(caplog)
    assert [line[:2] for line in text.splitlines()[1:]] == ["  "] * 4
    assert "\x1b" not in text


def test_logged_output_of_a_function_is_limited(shared, caplog, monkeypatch):
    caplog.set_level("INFO")
    session_id = shared.create("rough")
    shared.result(session_id, "say", text="x" * 1000 + "\n", times=1000)
    clock = serving.Clock(monkeypatch, jobs, threads)
    endless = shared.later_call(session_id, "say", {"timeout_seconds": 0.5}, text="y" * 1000, times=0)
    children = shared.service.runner._pool._children
    wait_until(lambda: any(child._output._dropped for child in [*children.values()]), "more than the log keeps")
    clock.move(1)
    assert endless.result(PATIENCE)["error"].startswith("TimeoutError: ")
    wait_until(lambda: len(printed_messages(caplog)) == 2)
    for text in printed_messages(caplog):
        assert 16_384 < len(text) < 20_000
        assert text.endswith(" more bytes)")
    goes_on(shared, session_id)


@pytest.mark.parametrize("how", ["interpreter", "sleep", "swallow", "stop"])
def test_call_is_killed_at_its_deadline_whatever_it_does(shared, how):
    session_id = shared.create("rough")
    deadline = ended_count(shared, "deadline")
    late = shared.later_call(session_id, "hang", how=how)
    other = shared.create("rough")
    assert shared.result(other, "mark", text="meanwhile") == ["meanwhile"]
    assert late.result(PATIENCE)["error"] == (
        "TimeoutError: `hang` took longer than 0.3 s and was given up; nothing has changed."
    )
    goes_on(shared, session_id)
    wait_until(lambda: ended_count(shared, "deadline") == deadline + 1)
    wait_until(lambda: shared.sessions.queues.threads.stuck_threads() == 0)


def test_exceeded_memory_limit_is_an_error_of_the_call(shared):
    session_id = shared.create("rough")
    assert shared.call(session_id, "eat", size=2**20)["result"] == 2**20
    assert shared.call(session_id, "eat", size=2**30)["error"] == "MemoryError: "
    goes_on(shared, session_id, ["eaten"])


@pytest.mark.parametrize("leftover", ["thread", "child", "grandchild", "fork", "folder"])
def test_executor_with_leftovers_is_replaced_and_they_end(shared, leftover):
    session_id = shared.create("rough")
    retired = ended_count(shared, "retired")
    leftover_pid = shared.result(session_id, "leave", what=leftover)
    assert ended_count(shared, "retired") == retired + 1
    wait_until(lambda: not is_running(leftover_pid), f"the end of process {leftover_pid}")
    goes_on(shared, session_id, [leftover])


def test_forked_process_of_a_function_sends_no_answer(shared):
    session_id = shared.create("rough")
    assert shared.result(session_id, "return_twice") is False
    goes_on(shared, session_id, ["twice"])


def test_session_continues_in_any_executor(shared):
    one, other = shared.create("rough"), shared.create("rough")
    shared.result(one, "mark", text="a")
    for n in range(3):
        process = shared.result(one, "process")
        os.kill(process, signal.SIGKILL)  # The server doesn't notice, because no call is running.
        wait_until(lambda process=process: not is_running(process))
        assert shared.result(other, "mark", text=str(n)) == [*map(str, range(n + 1))]
        assert shared.result(one, "process") != process
    assert shared.result(one, "mark", text="b") == ["a", "b"]


def test_call_that_its_executor_never_read_runs_in_another(shared, monkeypatch):
    session_id = shared.create("rough")
    process = shared.result(session_id, "process")
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: not is_running(process))
    # as if the executor had ended just after the worker checked it
    monkeypatch.setattr(ExecutorProcess, "is_alive", lambda _: True)
    assert shared.result(session_id, "process") != process


def test_executor_keeps_worlds_of_sessions_and_forks_apart(shared):
    session_id = shared.create("rough")
    shared.result(session_id, "mark", text="a")
    fork = shared.rpc("fork_session", session_id=session_id)[0]["session_id"]
    for n in range(3):
        assert shared.result(session_id, "mark", text="b") == ["a", *"b" * (n + 1)]
        assert shared.result(fork, "mark", text="c") == ["a", *"c" * (n + 1)]


def test_executors_have_no_settings_and_fixed_hashes(shared):
    variables = shared.result(shared.create("rough"), "variables")
    assert not [name for name in variables if name.startswith("TOOLPACK_")]
    assert (variables["TZ"], variables["PYTHONHASHSEED"]) == ("UTC", "0")
    assert variables["PATH"] == os.environ["PATH"]


def test_settings_of_the_server_do_not_reach_executors(monkeypatch):
    monkeypatch.setenv("TOOLPACK_SECRET_KEY", "a secret that nobody may see")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    with rough_bench() as bench:
        variables = bench.result(bench.create("rough"), "variables")
    assert "TOOLPACK_SECRET_KEY" not in variables
    assert variables["TZ"] == "Europe/Berlin"


def test_calls_setting_limits_the_calls_of_an_executor():
    with rough_bench(of_features=[ExecutorsSettings(calls=1)]) as bench:
        session_id = bench.create("rough")
        assert [bench.result(session_id, "remember", value=value) for value in "ab"] == [["a"], ["b"]]
        assert len({bench.result(session_id, "process") for _ in range(3)}) == 3
        assert bench.rpc("get_environment", session_id=session_id, pointer="/rough/pit/marks") == ["a", "b"]


def test_executor_without_a_call_limit_is_reused():
    with rough_bench(of_features=[ExecutorsSettings(max=1)]) as bench:
        session_id = bench.create("rough")
        assert [bench.result(session_id, "remember", value=value) for value in "ab"] == [["a"], ["a", "b"]]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_factories_and_evaluators_run_in_a_clean_executor(number, monkeypatch):
    monkeypatch.setattr(pool, "SPARE_PROCESSES", 0)
    with rough_bench(of_features=[ExecutorsSettings(max=number)]) as bench:
        first = bench.create("rough")
        for _ in range(3):
            assert bench.result(first, "remember", value="x")  # Evaluators in this process would see this value.
            built = bench.create("rough", options={"rough": {"trap": "seen"}})
            assert bench.rpc("get_environment", session_id=built, pointer="/rough/pit/marks") == []
            assert bench.rpc("evaluate_session", session_id=first, task="rough/nothing")["reward"] == 1
        assert len(bench.result(first, "remember", value="x")) == (1 if number == 1 else 4)


def test_calls_run_in_parallel_and_wait_for_an_executor():
    with rough_bench(of_features=[ExecutorsSettings(max=2)]) as bench, ThreadPoolExecutor(3) as threads:
        sessions = [bench.create("rough") for _ in range(3)]
        hanging = [threads.submit(bench.call, session, "hang", how="sleep") for session in sessions]
        ends = [call.result(PATIENCE)["error"] for call in hanging]
        assert [end.partition(":")[0] for end in ends] == ["TimeoutError"] * 3
        assert executors(bench)['{state="busy"}'] <= 2
        assert executors(bench)["_started_total"] <= 6


def test_quick_function_runs_while_slow_ones_hold_executors(tmp_path):
    with rough_bench(of_features=[ExecutorsSettings(max=1)], timeout_seconds=2 * PATIENCE) as bench:
        quick, marks = bench.create("rough"), []
        while len(marks) < 10 or not bench.sessions.queues.threads._pace.is_quick("mark"):
            marks = bench.result(quick, "mark", text="before")
        call = waiting_call(bench, bench.create("rough"), tmp_path)
        goes_on(bench, quick, marks)
        assert not call.done()


def test_one_owner_cannot_occupy_all_executors(tmp_path):
    tokens = {name: f"a token of {name}" for name in ("ann", "bob")}
    with rough_bench(of_features=[ExecutorsSettings(max=6)], tokens=tokens) as bench:

        def wait(name, calls):
            for number in range(calls):
                kwargs = {"begun": str(tmp_path / f"{name} {number}")}
                session_id = bench.create("rough", owner=name)
                bench.later("run_function", owner=name, session_id=session_id, function="wait", kwargs=kwargs)

        wait("ann", 16)
        wait_until(lambda: len([*tmp_path.glob("ann *")]) >= 3, "as many calls of ann as she has executors")
        wait_until(lambda: bench.service.sessions.load()[0] >= 6, "her other calls to wait")
        wait("bob", 3)
        wait_until(lambda: len([*tmp_path.glob("bob *")]) == 3, "all calls of bob")


def test_call_without_an_executor_in_time_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(lanes, "RESERVE_APART", 0)
    monkeypatch.setattr(pool, "SPARE_PROCESSES", 0)
    with rough_bench(of_features=[ExecutorsSettings(max=1)], queue_timeout_seconds=0.1) as bench:
        busy, waiting = bench.create("rough"), bench.create("rough")
        process = bench.result(busy, "process")
        hanging = waiting_call(bench, busy, tmp_path)
        error = refused(-32006, bench.call, waiting, "mark", text="late")
        assert "waited 0.1 s" in error.message
        os.kill(process, signal.SIGKILL)
        assert hanging.result(PATIENCE)["error"].startswith("CrashedError: ")
        goes_on(bench, waiting)


def test_factories_and_validators_run_in_executors(shared):
    crash = refused(-32002, shared.create, "rough", options={"rough": {"trap": "exit"}})
    assert crash.message == "The factory of toolpack 'rough' ended its process (exit status 7); nothing has changed."
    crash = refused(-32002, shared.create, "rough", environment={"rough": {"trap": "exit"}})
    assert "exit status 7" in crash.message
    wrong = refused(-32602, shared.create, "rough", environment={"rough": {"pit": 1}})
    assert wrong.data["detail"].startswith("The environment of toolpack 'rough' is invalid: pit: ")


def test_factory_that_hangs_is_killed_at_the_deadline(tmp_path, monkeypatch):
    clock = serving.Clock(monkeypatch, jobs, threads)
    started = tmp_path / "begun"
    with rough_bench() as bench:
        request = bench.later("create_session", toolpacks=["rough"], options={"rough": {"trap": f"spin {started}"}})
        wait_until(started.exists, "the factory")
        clock.move(31)
        refused(-32010, request.result, PATIENCE)
        wait_until(lambda: ended_count(bench, "deadline") == 1)
        goes_on(bench, bench.create("rough"))


def test_views_are_made_in_executors(shared):
    session_id = shared.create("rough", "ledger")
    shared.result(session_id, "mark", text="a")
    shared.result(session_id, "add", amount=2)
    assert shared.rpc("get_environment", session_id=session_id, pointer="/rough/pit/marks") == ["a"]
    patch = shared.rpc("diff_environment", session_id=session_id)
    assert {change["path"] for change in patch} == {"/rough/pit/marks/0", "/ledger/ledger/entries/0"}
    assert set(shared.world(session_id, 2)) == {"rough", "ledger"}
    assert shared.rpc("get_environment", format="snapshot", session_id=session_id)["version"] == 2


def zygote_of(bench):
    return bench.service.runner._pool._zygote.process


def test_zygote_that_ends_is_replaced_with_its_executors(tmp_path):
    with rough_bench() as bench:
        session_id = bench.create("rough")
        executor = bench.result(session_id, "process")
        hanging = waiting_call(bench, bench.create("rough"), tmp_path)
        os.kill(zygote_of(bench), signal.SIGKILL)
        assert refused(-32006, hanging.result, PATIENCE).data["retry_after_seconds"] == 1
        wait_until(lambda: not is_running(executor))
        goes_on(bench, session_id)


def test_close_ends_zygote_executors_and_leftover_processes(tmp_path):
    with rough_bench() as bench:
        session_id = bench.create("rough")
        processes = [
            zygote_of(bench),
            bench.result(session_id, "process"),
            bench.result(session_id, "leave", what="fork"),
        ]
        hanging = waiting_call(bench, bench.create("rough"), tmp_path)
    for process in processes:
        wait_until(lambda process=process: not is_running(process))
    assert hanging.done()


def test_unused_executors_end():
    with rough_bench() as bench, ThreadPoolExecutor(4) as threads:
        sessions = [bench.create("rough") for _ in range(4)]
        for call in [threads.submit(bench.call, session, "leave", what="nothing") for session in sessions]:
            call.result(PATIENCE)
        pool = bench.service.runner._pool
        wait_until(lambda: executors(bench)['{state="busy"}'] == 0)
        for child in pool._children.values():
            child.idle_since = time.monotonic() - 1000
        bench.service.runner.end_unused()
        assert executors(bench)['{state="idle"}'] == 1
        goes_on(bench, sessions[0], ["nothing"])


@pytest.mark.heavy
def test_executors_with_other_toolpacks_stop_the_start(tmp_path):
    changed = (
        (PACKS / "rough.py")
        .read_text()
        .replace('trap: str = ""\n\n    @model', 'trap: str = ""\n    more: int = 1\n\n    @model')
    )
    (tmp_path / "rough.py").write_text(changed)
    with pytest.raises(StartError) as problem:
        serving.Bench(load_catalog((PACKS,), ("rough",)), isolation="process", pack_dir=(tmp_path,), packs=("rough",))
    assert "their classes or functions differ from those that the server has loaded" in str(problem.value)


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [1, 2])
def test_server_with_executors_survives_kills_and_stops_cleanly(tmp_path, workers):
    variables = {"TOOLPACK_ISOLATION": "process", "TOOLPACK_SECRET_KEY": "a key that executors don't have"}
    flags = ["--workers", str(workers), "--packs", "ledger,rough"]
    with server_process.served(tmp_path, *flags, **variables) as server:
        session_id = server.rpc("create_session", toolpacks=["rough"])["session_id"]
        call = partial(server.call, session_id)
        assert call("mark", text="a")["result"] == ["a"]
        assert not {name for name in call("variables")["result"] if name.startswith("TOOLPACK_")}
        assert call("ends", how="crash")["error"].endswith("(signal 11); nothing has changed.")
        assert call("hang", how="interpreter")["error"].startswith("TimeoutError: ")
        executor = call("process")["result"]
        worker = parent_of(parent_of(executor))
        assert parent_of(worker) == server.process.pid
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not is_running(executor), "the end of the executor")

        def go_on():
            try:
                return call("mark", {"call_id": "b"}, text="b")["result"]
            except (httpx.TransportError, serving.RpcError):  # A new worker is starting.
                return None

        assert wait_until(go_on) == ["a", "b"]
        executor = call("process")["result"]
        os.kill(parent_of(executor), signal.SIGKILL)  # the zygote
        wait_until(lambda: not is_running(executor))
        assert call("mark", text="c")["result"] == ["a", "b", "c"]
        leftover_pid = call("leave", what="nothing")["result"]
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        wait_until(lambda: not is_running(leftover_pid))
    assert "Traceback" not in (tmp_path / "server.log").read_text()
