"""What the store in Postgres promises beyond the contract: lost answers, pauses, and servers that it can't use."""

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


def test_nothing_is_left_in_postgres(store, url):
    use_and_delete(store)
    assert rows(url) == [0] * len(TABLES)


def test_a_text_may_have_the_character_nul(store):
    kept = session(owner="a\0b", labels={"n\0": "\0", "plain": "1"})
    store.create([kept], {"bank": "b"}, {"b": b"x"})
    assert store.commit([commit(kept, 0, call_id="c\0")]) == [True]
    assert store.record_of_call(kept.id, "c\0").call_id == "c\0"
    assert (store.get("\0"), store.find_agent("\0"), store.record_of_call(kept.id, "c")) == (None, None, None)
    assert [each for each, _ in store.list(SessionQuery("a\0b", {"n\0": "\0"}, "", 9))] == [kept]
    assert store.list(SessionQuery(None, {}, "\0", 9, parent="\0")) == []


def test_postgres_applies_a_commit_once_however_often_its_connections_are_ended(store, url):
    kept = session()
    store.create([kept], {"bank": "b"}, {"b": b"x"})
    done = threading.Event()

    def end():
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'toolpack-server'"
        while not done.wait(random.uniform(0.001, 0.05)):
            postgres_server.ask(url, ended)

    ender = threading.Thread(target=end)
    ender.start()
    try:
        for index in range(100):
            assert store.commit([change(kept, index, f"b{index}", call_id=f"c{index}")]) == [True]
    finally:
        done.set()
        ender.join()
    assert [record.index for record in store.records(kept.id, -1, 1000)] == list(range(100))
    delete(store, [kept.id])
    assert rows(url) == [0] * len(TABLES)


def test_families_that_many_delete_at_once_leave_nothing(store, url):
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


def test_blobs_that_some_create_while_others_delete_are_there_or_not(store, url):
    def use(_):
        for _ in range(15):
            kept = session(owner="b")
            store.create([kept], {"bank": "shared", "mail": "other"}, {"shared": b"s", "other": b"o"})
            assert store.blobs(["shared", "other"]) == {"shared": b"s", "other": b"o"}
            assert store.commit([commit(kept, 0, parts={"bank": "other"})]) == [True]
            assert store.delete([kept.id]) == [kept.id]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    assert rows(url) == [0] * len(TABLES)


def test_postgres_that_stands_still_is_waited_for_and_then_given_up(monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.1)
    with postgres_server.start(*postgres_server.UNSAFE) as server, contextlib.closing(open_store(server.url)) as store:
        kept = session()
        store.create([kept], {"bank": "b"}, {"b": b"x"})
        processes = server.processes()

        def send(number):
            for process in processes:
                os.kill(process, number)

        send(signal.SIGSTOP)
        wake = threading.Timer(0.4, send, [signal.SIGCONT])
        wake.start()
        assert store.commit([change(kept, 0, "b0", call_id="c")]) == [True]
        wake.join()
        assert store.get(kept.id)[1] == Head(0, 1, {"bank": "b0"}, 0, record_id(kept, 0))
        processes = server.processes()
        with monkeypatch.context() as impatient:
            impatient.setattr(connection, "GIVE_UP_SECONDS", 0.3)
            send(signal.SIGSTOP)
            with pytest.raises(OverloadedError, match="can't be reached"):
                store.commit([change(kept, 1, "b1")])
            with pytest.raises(OverloadedError):
                store.ping()
            send(signal.SIGCONT)
        # The outcome of the commit that timed out was unknown; repeated, it is stored once.
        assert store.commit([change(kept, 1, "b1")]) == [True]
        assert store.get(kept.id)[1].index == 1
    with pytest.raises(SettingsError, match="can't be used"):
        open_store(server.url)


def test_servers_that_start_together_make_the_tables_once(url):
    with ThreadPoolExecutor(4) as pool:
        stores = [*pool.map(lambda _: open_store(url), range(4))]
    for each in stores:
        each.ping()
        each.close()
    assert postgres_server.ask(url, "SELECT number FROM toolpack.format") == [(1,)]


def test_a_postgres_of_another_layout_is_not_opened(store, url):
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
def test_a_postgres_that_is_not_there_is_refused_at_the_start(monkeypatch, wrong, says):
    monkeypatch.setattr("toolpack_server.features.stores.postgres.connection.GIVE_UP_SECONDS", 0.01)
    with pytest.raises(SettingsError, match=says):
        open_store(wrong)


def test_connecting_to_a_host_that_says_nothing_stops_no_other_thread():
    hosts = pytest.importorskip("toolpack_server.features.stores.postgres.hosts")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]

        def hang_up():
            listening.accept()[0].close()

        other = threading.Thread(target=hang_up)
        other.start()
        with pytest.raises(hosts.LostError, match="closed the connection"):  # by the other thread, meanwhile
            hosts.Hosts(f"postgresql://127.0.0.1:{port}/x").connect()
        other.join()


def test_of_several_hosts_one_that_says_nothing_is_left_after_a_while(url, monkeypatch):
    monkeypatch.setattr("toolpack_server.features.stores.postgres.hosts.CONNECT_SECONDS", 0.2)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        begin, _, rest = url.rpartition("@")
        hosts = f"postgresql://{begin.removeprefix('postgresql://')}{'@' if begin else ''}127.0.0.1:"
        several = f"{hosts}{listening.getsockname()[1]},{rest.removeprefix('postgresql://')}"
        with contextlib.closing(open_store(several)) as store:
            store.ping()


def test_what_fails_again_and_again_is_prepared_once(url):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with contextlib.closing(connection.PostgresConnections(url)) as connections:
        counts = []
        for _ in range(3):
            with pytest.raises(RuntimeError, match="division by zero"):
                connections.run(("SELECT 1 / (random() * 0)::bigint", ()), ("SELECT 1::bigint", ()))
            counts.append(connections.run(("SELECT count(*) FROM pg_prepared_statements", ())))
        assert counts[0] == counts[2]
        assert connections.run(("SELECT 1::bigint", ())) == [[(1,)]]


def test_what_somebody_cancels_is_sent_again_and_then_given_up(url, monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with contextlib.closing(connection.PostgresConnections(url)) as connections:
        monkeypatch.setattr(connection, "GIVE_UP_SECONDS", 0)
        connections.run(("SELECT set_config('statement_timeout', '10ms', false)", ()))
        with pytest.raises(OverloadedError, match="can't be reached"):
            connections.run(("SELECT pg_sleep(60)::text", ()))


def test_who_gets_no_connection_is_told_so(url, monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with contextlib.closing(connection.PostgresConnections(url)) as connections, contextlib.ExitStack() as lent:
        for _ in range(connection.MAX_CONNECTIONS):
            lent.enter_context(connections._connection())
        monkeypatch.setattr(connection, "GIVE_UP_SECONDS", 0.01)
        with pytest.raises(OverloadedError, match="in use"):
            connections.run(("SELECT 1::bigint", ()))


def test_a_postgres_that_only_reads_is_refused_at_the_start(url, monkeypatch):
    monkeypatch.setattr("toolpack_server.features.stores.postgres.connection.GIVE_UP_SECONDS", 0.01)
    with pytest.raises(SettingsError, match="read-only"):
        open_store(f"{url}?options=-cdefault_transaction_read_only%3Don")


def test_what_is_refused_for_lack_of_space_changes_nothing_and_can_be_deleted(store, url):
    kept = session()
    store.create([kept], {"bank": "b"}, {"b": b"x"})
    # What Postgres says without space, on a row that a test can choose.
    postgres_server.ask(
        url,
        "CREATE FUNCTION toolpack.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; "
        "CREATE TRIGGER refuse BEFORE INSERT ON toolpack.records FOR EACH ROW EXECUTE FUNCTION toolpack.refuse()",
    )
    with pytest.raises(OverloadedError, match=r"could not extend file\); nothing was changed"):
        store.commit([change(kept, 0, "b1")])
    assert store.get(kept.id)[1].index == -1
    assert delete(store, [kept.id]) == [kept.id]
    assert rows(url) == [0] * len(TABLES)


def test_a_commit_that_no_standby_has_is_not_acknowledged_whoever_ends_the_wait(monkeypatch):
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    with postgres_server.start(*postgres_server.UNSAFE) as server, contextlib.closing(open_store(server.url)) as store:
        kept = session()
        store.create([kept], {"bank": "b"}, {"b": b"x"})

        def wait_for(standby):
            postgres_server.ask(server.url, f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
            postgres_server.ask(server.url, "SELECT pg_reload_conf()")
            postgres_server.ask(server.url, "CHECKPOINT")  # by the process that has read the setting by then

        wait_for("nobody")
        cancelled, done = [], threading.Event()

        def cancel():
            waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while not done.wait(0.02):
                cancelled.extend(postgres_server.ask(server.url, waiting))

        canceller = threading.Thread(target=cancel)
        with monkeypatch.context() as impatient:
            impatient.setattr(connection, "GIVE_UP_SECONDS", 1.0)
            canceller.start()
            with pytest.raises(OverloadedError, match="can't be reached"):
                store.commit([change(kept, 0, "b1")])
            done.set()
            canceller.join()
            assert len(cancelled) > 1  # Postgres answered each time that it was committed, with a warning
            assert store.get(kept.id)[1].index == 0  # and so it is, on this machine alone
            impatient.setattr(connection, "ANSWER_SECONDS", 0.3)
            for index in (0, 1):
                with pytest.raises(OverloadedError, match="can't be reached"):
                    store.commit([change(kept, index, f"b{index + 1}")])
        wait_for("")
        assert store.commit([change(kept, 0, "b1"), change(kept, 1, "b2")]) == [True, True]
        assert store.get(kept.id)[1].index == 1


def test_leases_of_workers_that_died_long_ago_are_forgotten_with_their_wishes(store, url):
    store.heartbeat("old")
    store.heartbeat("new")
    store.ask("s", "old")
    postgres_server.ask(url, "UPDATE toolpack.workers SET at = now() - interval '2 days' WHERE holder = 'old'")
    store.clean_up()
    assert postgres_server.ask(url, "SELECT convert_from(holder, 'UTF8') FROM toolpack.workers") == [("new",)]
    assert postgres_server.ask(url, "SELECT * FROM toolpack.asked") == []


def test_a_claim_and_a_read_take_one_round_trip(store, monkeypatch):
    kept = session()
    store.create([kept], {"bank": "b"}, {"b": b"x"})
    store.get(kept.id)
    claim(store, kept, "w")
    connection = pytest.importorskip("toolpack_server.features.stores.postgres.connection")
    sent = []
    run = connection.PostgresConnection.run
    monkeypatch.setattr(connection.PostgresConnection, "run", lambda *given: sent.append(given) or run(*given))
    store.get(kept.id)
    assert len(sent) == 1
    others = [session() for _ in range(5)]
    store.create(others, {"bank": "b"}, {})
    sent.clear()
    assert store.commit([change(each, 0, f"new {each.id}") for each in others]) == [True] * 5
    assert len(sent) == 1


def test_without_psycopg_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [name for name in sys.modules if name.startswith("toolpack_server.features.stores.postgres.")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'toolpack-server\[postgres\]'"):
        open_store("postgresql://127.0.0.1:1/x")


@pytest.mark.long
def test_a_failover_to_a_synchronous_standby_loses_no_answered_call():
    command = [sys.executable, "-m", "tools.failover", "--rounds", "2"]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 failovers" in ended.stdout
