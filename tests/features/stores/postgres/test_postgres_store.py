"""The Postgres store beyond the contract: lost answers, pauses, and unusable servers."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import postgres_server
import pytest
from patience import PATIENCE
from serving import open_store

from toolpack_server.base.errors import OverloadedError, SettingsError
from toolpack_server.stores.base import Head, SessionQuery
from toolpack_server.testing.store_contract.samples import (
    change,
    claim,
    commit,
    delete,
    fork_of,
    record_id,
    session,
    use_and_delete,
)

pytestmark = pytest.mark.heavy
TABLES = ("sessions", "heads", "records", "changes", "parts", "blobs")


@pytest.fixture
def url(postgres_url):
    return postgres_server.emptied(postgres_url)


@pytest.fixture
def store(url):
    with contextlib.closing(open_store(url)) as opened:
        yield opened


def rows(url):
    return [postgres_server.ask(url, f"SELECT count(*) FROM toolpack.{table}")[0][0] for table in TABLES]


def test_deleted_sessions_leave_no_rows_in_postgres(store, url):
    use_and_delete(store)
    assert rows(url) == [0] * len(TABLES)


def test_text_may_contain_the_character_nul(store):
    stored = session(owner="a\0b", labels={"n\0": "\0", "plain": "1"})
    store.create([stored], {"bank": "b"}, {"b": b"x"})
    assert store.commit([commit(stored, 0, call_id="c\0")]) == [True]
    assert store.record_of_call(stored.id, "c\0").call_id == "c\0"
    assert (store.get("\0"), store.find_agent("\0"), store.record_of_call(stored.id, "c")) == (None, None, None)
    assert [each for each, _ in store.list(SessionQuery("a\0b", {"n\0": "\0"}, "", 9))] == [stored]
    assert store.list(SessionQuery(None, {}, "\0", 9, parent="\0")) == []


def test_commit_is_applied_once_despite_killed_connections(store, url):
    stored = session()
    store.create([stored], {"bank": "b"}, {"b": b"x"})
    finished = threading.Event()

    def end():
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'toolpack-server'"
        while not finished.wait(random.uniform(0.001, 0.05)):
            postgres_server.ask(url, ended)

    ender = threading.Thread(target=end)
    ender.start()
    try:
        for index in range(100):
            assert store.commit([change(stored, index, f"b{index}", call_id=f"c{index}")]) == [True]
    finally:
        finished.set()
        ender.join()
    assert [record.index for record in store.records(stored.id, -1, 1000)] == list(range(100))
    delete(store, [stored.id])
    assert rows(url) == [0] * len(TABLES)


def test_concurrent_deletions_of_families_leave_no_rows(store, url):
    for _ in range(5):
        line = [session()]
        store.create(line, {"bank": "b"}, {"b": b"x"})
        for _ in range(7):
            line.append(fork_of(line[-1]))
            store.create(line[-1:], {"bank": "b"}, {})
        twigs = [fork_of(each) for each in line for _ in range(2)]
        for twig in twigs:
            store.create([twig], {"bank": "b"}, {})
        ids = [each.id for each in (*line, *twigs)]
        random.shuffle(ids)
        with ThreadPoolExecutor(6) as pool:
            deleted = [*pool.map(lambda id_: store.delete([id_]), ids)]
        assert deleted == [[id_] for id_ in ids]
        assert rows(url) == [0] * len(TABLES)


def test_blobs_are_consistent_under_concurrent_use_and_deletion(store, url):
    def use(_):
        for _ in range(15):
            stored = session(owner="b")
            store.create([stored], {"bank": "shared", "mail": "other"}, {"shared": b"s", "other": b"o"})
            assert store.blobs(["shared", "other"]) == {"shared": b"s", "other": b"o"}
            assert store.commit([commit(stored, 0, parts={"bank": "other"})]) == [True]
            assert store.delete([stored.id]) == [stored.id]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert rows(url) == [0] * len(TABLES)


def test_paused_postgres_is_waited_for_until_a_timeout(monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.1)
    with postgres_server.start(*postgres_server.UNSAFE) as server, contextlib.closing(open_store(server.url)) as store:
        stored = session()
        store.create([stored], {"bank": "b"}, {"b": b"x"})
        processes = server.processes()

        def send(number):
            for process in processes:
                os.kill(process, number)

        send(signal.SIGSTOP)
        wake = threading.Timer(0.4, send, [signal.SIGCONT])
        wake.start()
        assert store.commit([change(stored, 0, "b0", call_id="c")]) == [True]
        wake.join()
        assert store.get(stored.id)[1] == Head(0, 1, {"bank": "b0"}, 0, record_id(stored, 0))
        processes = server.processes()
        with monkeypatch.context() as impatient:
            impatient.setattr(connection, "GIVE_UP_SECONDS", 0.3)
            send(signal.SIGSTOP)
            with pytest.raises(OverloadedError, match="can't be reached"):
                store.commit([change(stored, 1, "b1")])
            with pytest.raises(OverloadedError):
                store.ping()
            send(signal.SIGCONT)
        # The outcome of the commit that timed out is unknown. A repetition stores it once.
        assert store.commit([change(stored, 1, "b1")]) == [True]
        assert store.get(stored.id)[1].index == 1
    with pytest.raises(SettingsError, match="can't be used"):
        open_store(server.url)


def test_simultaneously_started_servers_create_the_tables_once(url):
    with ThreadPoolExecutor(4) as pool:
        stores = [*pool.map(lambda _: open_store(url), range(4))]
    for each in stores:
        each.ping()
        each.close()
    assert postgres_server.ask(url, "SELECT number FROM toolpack.format") == [(1,)]


def test_postgres_with_another_schema_version_is_rejected(store, url):
    store.ping()
    postgres_server.ask(url, "UPDATE toolpack.format SET number = 99")
    with pytest.raises(SettingsError, match="has schema 99, but this toolpack-server needs schema 1"):
        open_store(url)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("postgresql://127.0.0.1:1/x", "The Postgres store can't be used: connection .* failed"),
        ("postgresql://127.0.0.1/x?colour=red", "The store's URL is wrong: invalid URI query parameter"),
        ("postgresql://[::1/x", "The store's URL is wrong"),
    ],
)
def test_unreachable_postgres_stops_the_start(monkeypatch, wrong, says):
    monkeypatch.setattr("toolpack_server.features.stores.postgres.connection.GIVE_UP_SECONDS", 0.01)
    with pytest.raises(SettingsError, match=says):
        open_store(wrong)


def test_connecting_to_a_silent_host_blocks_no_other_thread():
    hosts = pytest.importorskip("toolpack_server.features.stores.postgres.hosts")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]

        def hang_up():
            listening.accept()[0].close()

        other = threading.Thread(target=hang_up)
        other.start()
        # Closed by the other thread while this one connects.
        with pytest.raises(hosts.LostError, match="closed the connection"):
            hosts.Hosts(f"postgresql://127.0.0.1:{port}/x").connect()
        other.join()


def test_silent_host_of_several_is_skipped_after_a_timeout(url, monkeypatch):
    monkeypatch.setattr("toolpack_server.features.stores.postgres.hosts.CONNECT_SECONDS", 0.2)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        begin, _, address = url.rpartition("@")
        hosts = f"postgresql://{begin.removeprefix('postgresql://')}{'@' if begin else ''}127.0.0.1:"
        several = f"{hosts}{listening.getsockname()[1]},{address.removeprefix('postgresql://')}"
        with contextlib.closing(open_store(several)) as store:
            store.ping()


def test_failing_statement_is_prepared_only_once(url):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with contextlib.closing(connection.PostgresConnections(url)) as connections:
        counts = []
        for _ in range(3):
            with pytest.raises(RuntimeError, match="division by zero"):
                connections.run(("SELECT 1 / (random() * 0)::bigint", ()), ("SELECT 1::bigint", ()))
            counts.append(connections.run(("SELECT count(*) FROM pg_prepared_statements", ())))
        assert counts[0] == counts[2]
        assert connections.run(("SELECT 1::bigint", ())) == [[(1,)]]


def test_cancelled_statement_is_retried_until_a_timeout(url, monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with contextlib.closing(connection.PostgresConnections(url)) as connections:
        monkeypatch.setattr(connection, "GIVE_UP_SECONDS", 0)
        connections.run(("SELECT set_config('statement_timeout', '10ms', false)", ()))
        with pytest.raises(OverloadedError, match="can't be reached"):
            connections.run(("SELECT pg_sleep(60)::text", ()))


def test_exhausted_connections_are_an_error(url, monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with contextlib.closing(connection.PostgresConnections(url)) as connections, contextlib.ExitStack() as lent:
        for _ in range(connection.MAX_CONNECTIONS):
            lent.enter_context(connections._connection())
        monkeypatch.setattr(connection, "GIVE_UP_SECONDS", 0.01)
        with pytest.raises(OverloadedError, match="in use"):
            connections.run(("SELECT 1::bigint", ()))


def test_read_only_postgres_stops_the_start(url, monkeypatch):
    monkeypatch.setattr("toolpack_server.features.stores.postgres.connection.GIVE_UP_SECONDS", 0.01)
    with pytest.raises(SettingsError, match="read-only"):
        open_store(f"{url}?options=-cdefault_transaction_read_only%3Don")


def test_full_disk_changes_nothing_and_allows_deletions(store, url):
    stored = session()
    store.create([stored], {"bank": "b"}, {"b": b"x"})
    # The error of Postgres without disk space, for a row that the test chooses.
    postgres_server.ask(
        url,
        "CREATE FUNCTION toolpack.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; "
        "CREATE TRIGGER refuse BEFORE INSERT ON toolpack.records FOR EACH ROW EXECUTE FUNCTION toolpack.refuse()",
    )
    with pytest.raises(OverloadedError, match=r"could not extend file\); nothing was changed"):
        store.commit([change(stored, 0, "b1")])
    assert store.get(stored.id)[1].index == -1
    assert delete(store, [stored.id]) == [stored.id]
    assert rows(url) == [0] * len(TABLES)


def test_commit_without_a_standby_is_never_acknowledged(monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with postgres_server.start(*postgres_server.UNSAFE) as server, contextlib.closing(open_store(server.url)) as store:
        stored = session()
        store.create([stored], {"bank": "b"}, {"b": b"x"})

        def wait_for(standby):
            postgres_server.ask(server.url, f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
            postgres_server.ask(server.url, "SELECT pg_reload_conf()")
            postgres_server.ask(server.url, "CHECKPOINT")  # The checkpointer reads the setting first.

        wait_for("nobody")
        cancelled, finished = [], threading.Event()

        def cancel():
            waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while not finished.wait(0.02):
                cancelled.extend(postgres_server.ask(server.url, waiting))

        canceller = threading.Thread(target=cancel)
        with monkeypatch.context() as impatient:
            impatient.setattr(connection, "GIVE_UP_SECONDS", 1.0)
            canceller.start()
            with pytest.raises(OverloadedError, match="can't be reached"):
                store.commit([change(stored, 0, "b1")])
            finished.set()
            canceller.join()
            assert len(cancelled) > 1  # Each time Postgres reported success with a warning.
            assert store.get(stored.id)[1].index == 0  # It is committed, but only on this machine.
            impatient.setattr(connection, "ANSWER_SECONDS", 0.3)
            for index in (0, 1):
                with pytest.raises(OverloadedError, match="can't be reached"):
                    store.commit([change(stored, index, f"b{index + 1}")])
        wait_for("")
        assert store.commit([change(stored, 0, "b1"), change(stored, 1, "b2")]) == [True, True]
        assert store.get(stored.id)[1].index == 1


def test_leases_of_dead_workers_are_deleted_with_their_requests(store, url):
    store.heartbeat("old")
    store.heartbeat("new")
    store.ask("s", "old")
    postgres_server.ask(url, "UPDATE toolpack.workers SET at = now() - interval '2 days' WHERE holder = 'old'")
    store.clean_up()
    assert postgres_server.ask(url, "SELECT convert_from(holder, 'UTF8') FROM toolpack.workers") == [("new",)]
    assert postgres_server.ask(url, "SELECT * FROM toolpack.asked") == []


def test_claim_and_read_take_one_round_trip(store, monkeypatch):
    stored = session()
    store.create([stored], {"bank": "b"}, {"b": b"x"})
    store.get(stored.id)
    claim(store, stored, "w")
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    statements = []
    run = connection.PostgresConnection.run
    monkeypatch.setattr(
        connection.PostgresConnection, "run", lambda *arguments: statements.append(arguments) or run(*arguments)
    )
    store.get(stored.id)
    assert len(statements) == 1
    others = [session() for _ in range(5)]
    store.create(others, {"bank": "b"}, {})
    statements.clear()
    assert store.commit([change(each, 0, f"new {each.id}") for each in others]) == [True] * 5
    assert len(statements) == 1


def test_missing_psycopg_is_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("toolpack_server.features.stores.postgres.")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'toolpack-server\[postgres\]'"):
        open_store("postgresql://127.0.0.1:1/x")


@pytest.mark.long
def test_failover_to_a_synchronous_standby_loses_no_answer():
    command = [sys.executable, "-m", "tools.failover", "--rounds", "2"]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 failovers" in ended.stdout
