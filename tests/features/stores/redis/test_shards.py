"""Several Redis as one store: families stay together, lists and quotas are of all, and one that is lost is alone."""

import contextlib
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest
import redis_server
import server_process
import serving
from command_line import invoke
from serving import RpcError, open_store, wait_until

from toolpack_server.base.errors import MissingBlobError, OverloadedError, SettingsError
from toolpack_server.features.stores.blobs.store import opened as with_blobs_outside
from toolpack_server.stores.base import FAMILY, Counted, SessionQuery, family_of
from toolpack_server.stores.history import GAP_SECONDS
from toolpack_server.testing.store_contract.samples import change, claim, commit, fork_of, session, use_and_delete

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def url(shard_urls):
    return ",".join(map(redis_server.emptied, shard_urls))


@pytest.fixture
def store(url):
    with contextlib.closing(open_store(url)) as opened:
        yield opened


class Machines:
    """Real Redis that keep their data; each can be killed, and comes back where it was."""

    def __init__(self, folder, number=2):
        self._folder = folder
        self._running = {}
        self.ports = [self._start(port) for port in [None] * number]
        self.url = ",".join(f"redis://127.0.0.1:{port}/0" for port in self.ports)

    def _start(self, port):
        stack = contextlib.ExitStack()
        folder = self._folder / f"redis-{port or len(self._running)}"
        port = port or redis_server.free_port()
        folder = self._folder / str(port)
        folder.mkdir(exist_ok=True)
        _, pid = stack.enter_context(redis_server.start(folder, *ALWAYS, port=port))
        self._running[port] = stack, pid
        return port

    def kill(self, port):
        os.kill(self._running[port][1], signal.SIGKILL)
        self._running.pop(port)[0].close()

    def start(self, port):
        self._start(port)

    def close(self):
        for stack, _ in self._running.values():
            stack.close()


@pytest.fixture
def machines(tmp_path):
    with contextlib.closing(Machines(tmp_path)) as running:
        yield running


def on_each(store, make):
    """Make sessions until each shard has one; get one of each, by the port of the shard."""
    found = {}
    while len(found) < len(store.shards):
        session_id = make()
        found.setdefault(port_of(store, session_id), session_id)
    return found


def port_of(store, session_id):
    return int(store._of(session_id).label.partition(":")[2].partition("/")[0])


def refused(bench, method, **params):
    with pytest.raises(RpcError) as caught:
        bench.rpc(method, **params)
    if caught.value.code == -32006:
        assert caught.value.data["type"] == "OverloadedError"  # as of any store: clients go by it
    return caught.value.code


def test_families_are_divided_and_each_stays_together(url):
    with serving.Bench(store=url) as bench:
        roots = on_each(bench.store, bench.create)
        for root in roots.values():
            bench.result(root, "add", amount=3)
            first, second = bench.rpc("fork_session", session_id=root, count=2)
            (third,) = bench.rpc("fork_session", session_id=first["session_id"], call_id=f"again {root}")
            assert bench.rpc("fork_session", session_id=first["session_id"], call_id=f"again {root}") == [third]
            family = [root, *(each["session_id"] for each in (first, second, third))]
            assert {family_of(each) for each in family} == {root[FAMILY]}
            assert len({port_of(bench.store, each) for each in family}) == 1
            assert len({each[:8] for each in family}) == 4  # by which people know them
            assert bench.result(family[-1], "add", amount=1) == 4
            assert bench.rpc("fork_session", session_id=root)[0]["session_id"] not in family
        assert len({port_of(bench.store, each) for each in roots.values()}) == 3


def test_lists_labels_and_quotas_are_of_all_shards(url):
    with serving.Bench(store=url, max_sessions=13) as bench:
        made = [bench.create(labels={"n": str(number % 3)}, call_id=f"c{number}") for number in range(12)]
        assert len({port_of(bench.store, each) for each in made}) > 1
        assert [bench.create(labels={"n": str(n % 3)}, call_id=f"c{n}") for n in range(12)] == made
        with pytest.raises(RpcError, match="call_id"):
            bench.create(call_id="c3")

        def listed(**params):
            return [each["session_id"] for each in bench.rpc("list_sessions", **params)]

        assert listed(limit=100) == sorted(made)
        assert listed(limit=100, order="-created") == made[::-1]
        assert listed(limit=3, order="-created", after=made[7]) == made[6:3:-1]
        assert listed(limit=100, labels={"n": "1"}) == sorted(made[1::3])
        (fork,) = bench.rpc("fork_session", session_id=made[5])
        assert listed(limit=100, parent=made[5]) == [fork["session_id"]]
        assert refused(bench, "create_session", toolpacks=["ledger"]) == -32007  # 13 in all
        for each in made[1::3]:
            bench.rpc("close_session", session_id=each)
        assert bench._run(bench.sessions.count()) == 9


def test_an_agent_finds_its_session_wherever_that_is(url):
    with serving.Bench(store=url) as bench, serving.Bench(store=url) as other:
        for session_id in on_each(bench.store, bench.create).values():
            key = bench.rpc("get_session", session_id=session_id)["agent_path"].rpartition("/")[2]
            call = {"function": "add", "kwargs": {"amount": 2}}
            assert other.rpc("run_function", agent_key=key, **call)["result"] == 2
    assert store_finds_nothing(url)


def store_finds_nothing(url):
    with contextlib.closing(open_store(url)) as store:
        return store.find_agent("unknown") is None


def test_newest_first_goes_on_after_a_session_that_another_shard_has(store):
    many = [session(owner=("ann", "bob")[n % 2], created_at=1000.5 + n // 7) for n in range(40)]
    store.create(many, {}, {})
    assert len({store._of(each.id) for each in many}) == 3
    ids = [each.id for each in many]
    for owner, expected in ((None, ids), ("ann", ids[::2])):
        for after in ids[::2]:
            found = store.list(SessionQuery(owner, {}, after, 5, newest_first=True))
            place = expected.index(after)
            assert [each.id for each, _ in found] == expected[max(place - 5, 0) : place][::-1]


def test_what_one_shard_has_another_may_refer_to(store):
    first, second, third = on_each(store, lambda: made_session(store)).values()
    assert store.commit([change(kept_by(store, first), 0, "new")]) == [True]
    assert store.commit([commit(kept_by(store, second), 0, parts={"bank": "new"})]) == [True]
    assert store.blobs(["new"]) == {"new": b"body of new"}
    store.delete([first, second])
    with pytest.raises(MissingBlobError, match="new"):
        store.blobs(["new"])
    assert store.commit([commit(kept_by(store, third), 0, parts={"bank": "new"})]) == [False]


def made_session(store):
    kept = session()
    store.create([kept], {}, {})
    return kept.id


def kept_by(store, session_id):
    return store.get(session_id)[0]


def test_nothing_is_left_in_any_shard(store):
    use_and_delete(store)
    for shard in store.shards:
        left = sorted(shard.store._redis._client.keys("*"))
        assert left == [b"toolpack:schema", b"toolpack:shard", b"toolpack:shards"]


# Which shards there are


def test_the_order_of_the_urls_means_nothing_and_shards_may_move(shard_urls, url):
    with contextlib.closing(open_store(url)) as store:
        made = [made_session(store) for _ in range(20)]
    for order in permutations(shard_urls):
        with contextlib.closing(open_store(",".join(order).replace("127.0.0.1", "localhost"))) as store:
            assert all(store.get(each) for each in made)
    with contextlib.closing(open_store(f"{' , '.join(shard_urls)}, ")) as store:  # as a person writes a list
        assert all(store.get(each) for each in made)


def test_a_changed_list_is_refused(shard_urls, url):
    first, second, third = shard_urls
    open_store(f"{first},{second}").close()
    for wrong, says in (
        (url, "names 3 shards, and the store has 2"),
        (first, "is one of 2 shards of a store: name all of them"),
        (f"{first},{third}", "isn't one of the store's, or has lost all its data"),
        (f"{first},{first}", "names a shard twice"),
    ):
        with pytest.raises(SettingsError, match=says):
            open_store(wrong)
    for each in (second, third):
        redis_server.emptied(each)
    open_store(f"{second},{third}").close()
    with pytest.raises(SettingsError, match="of different stores"):
        open_store(f"{first},{second}")


def test_a_redis_that_has_sessions_becomes_no_shard(shard_urls, url):
    first, second, _ = shard_urls
    with contextlib.closing(open_store(first)) as store:
        made_session(store)
    with pytest.raises(SettingsError, match="has sessions of a store without shards"):
        open_store(f"{first},{second}")
    assert url


def test_servers_that_start_together_agree(url):
    with ThreadPoolExecutor(4) as threads:
        stores = [*threads.map(open_store, [url] * 4)]
    assert len({store._names for store in stores}) == 1
    for store in stores:
        store.close()


def test_a_shard_that_has_lost_everything_begins_anew_only_if_somebody_says_so(shard_urls, url):
    with contextlib.closing(open_store(url)) as store:
        names = {shard.label: shard.name for shard in store.shards}
    redis_server.emptied(shard_urls[1])
    with pytest.raises(SettingsError, match="redis-cli SET toolpack:shard ") as caught:
        open_store(url)
    name = str(caught.value).rpartition(" ")[2]
    assert name == names[shard_urls[1].removeprefix("redis://")]
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(shard_urls[1]) as client:
        client.set("toolpack:shard", name)
    with contextlib.closing(open_store(url)) as store:
        assert {shard.label: shard.name for shard in store.shards} == names


# One that is lost


def test_why_a_shard_cant_be_used_is_in_the_log(shard_urls, url, caplog):
    open_store(url).close()
    wrong = shard_urls[0].replace("redis://", "redis://ann:s3cret@")
    with contextlib.closing(open_store(",".join([wrong, *shard_urls[1:]]))):
        (said,) = [each for each in caplog.messages if "can't be reached" in each]
    assert said.startswith(f"The store's shard {shard_urls[0].removeprefix('redis://')} can't be reached")
    assert "invalid username-password pair" in said
    assert "s3cret" not in said


def test_of_a_lost_shard_only_its_families_are_refused_until_it_is_back(machines):
    with serving.Bench(store=machines.url) as bench:
        store = bench.store
        at = on_each(store, lambda: bench.create(call_id=f"c{time.monotonic_ns()}"))
        (lost, there), (lost_id, there_id) = at, at.values()
        for each in at.values():
            bench.result(each, "add", amount=1)
        sessions = bench._run(bench.sessions.count())
        machines.kill(lost)
        for _ in range(3):
            assert refused(bench, "run_function", session_id=lost_id, function="add", kwargs={"amount": 1}) == -32006
            bench.result(there_id, "add", amount=1)
        ready, says = bench._run(bench.sessions.ping_store())
        assert ready
        assert f"127.0.0.1:{lost}" in says
        assert str(there) not in says
        # What is asked of all is refused, or goes by what the shard has said last.
        assert refused(bench, "list_sessions") == -32006
        assert bench._run(bench.sessions.count()) == sessions
        (fork,) = bench.rpc("fork_session", session_id=there_id, call_id="f")
        assert bench.rpc("fork_session", session_id=there_id, call_id="f") == [fork]
        number = 0
        while port_of(store, bench.service.context.identities.creation("", f"n{number}", []).new_id(0)) == lost:
            number += 1
        assert bench.create(call_id=f"n{number}") == bench.create(call_id=f"n{number}")
        assert refused(bench, "get_session", session_id="0" * 48) in {-32001, -32006}
        # Many at once, of both.
        with bench.paused():
            calls = [bench.later_call(each, "add", amount=1) for each in at.values() for _ in range(5)]
        ended = [call.exception(serving.PATIENCE) for call in calls]
        assert [error.code for error in ended[:5]] == [-32006] * 5
        assert ended[5:] == [None] * 5
        machines.start(lost)
        wait_until(lambda: not any(shard.lost for shard in store.shards), "the shard is back")
        assert bench._run(bench.sessions.ping_store()) == (True, "")
        assert bench.result(lost_id, "add", amount=1) == 2
        assert bench.result(there_id, "total") == 9


def test_a_commit_of_which_nobody_knows_is_answered_as_such_and_stored_once(machines):
    with serving.Bench(store=machines.url) as bench:
        at = on_each(bench.store, bench.create)
        (lost, _), (lost_id, there_id) = at, at.values()
        for each in at.values():
            bench.result(each, "add", amount=1)
        with bench.paused():
            machines.kill(lost)
            calls = [
                bench.later_call(each, "add", {"call_id": "mine"}, amount=1) for each in (lost_id, there_id, there_id)
            ]
        error = calls[0].exception(serving.PATIENCE)
        assert (error.code, "send it again" in str(error) or "send the request again" in str(error)) == (-32006, True)
        assert {call.result(serving.PATIENCE)["result"] for call in calls[1:]} == {2}
        machines.start(lost)
        wait_until(lambda: not any(shard.lost for shard in bench.store.shards), "the shard is back")
        for each in at.values():
            assert bench.call(each, "add", {"call_id": "mine"}, amount=1)["result"] == 2


def test_a_server_starts_while_a_shard_is_lost(machines):
    with contextlib.closing(open_store(machines.url)) as store:
        at = on_each(store, lambda: made_session(store))
    (lost, _), (lost_id, there_id) = at, at.values()
    machines.kill(lost)
    with contextlib.closing(open_store(machines.url)) as store:
        assert store.get(there_id)
        for step in (store.get, store.find_agent):
            with pytest.raises(OverloadedError, match="can't be reached"):
                step(lost_id)
        with pytest.raises(OverloadedError):
            store.claim([there_id, lost_id], "w")
        assert claim(store, kept_by(store, there_id), "w").epoch == 1  # nothing was claimed before
        machines.start(lost)
        wait_until(lambda: not any(shard.lost for shard in store.shards), "the shard is back")
        assert store.get(lost_id)
    for port in machines.ports:
        machines.kill(port)
    with pytest.raises(SettingsError, match="can't be used"):
        open_store(machines.url)


def test_a_full_shard_is_named_and_the_others_go_on(url):
    redis = pytest.importorskip("redis")
    with serving.Bench(store=url) as bench:
        at = on_each(bench.store, bench.create)
    full, *others = at
    with redis.Redis(port=full) as client:
        client.config_set("maxmemory", "1")
        try:
            with serving.Bench(store=url) as bench:
                assert refused(bench, "run_function", session_id=at[full], function="total") == -32006
                assert all(bench.result(at[other], "add", amount=1) == 1 for other in others)
                ready, says = bench._run(bench.sessions.ping_store())
                assert ready
                assert re.search(rf"127.0.0.1:{full}/0 \(The Redis store is full", says)
        finally:
            client.config_set("maxmemory", "0")


def test_another_redis_in_the_place_of_a_lost_shard_is_not_taken_for_it(machines, caplog):
    with contextlib.closing(open_store(machines.url)) as store:
        lost = machines.ports[0]
        machines.kill(lost)
        with pytest.raises(OverloadedError):
            store.list(SessionQuery(None, {}, "", 1))
        for path in machines._folder.joinpath(str(lost)).rglob("*.*"):
            path.unlink()
        machines.start(lost)
        wait_until(lambda: "has lost all its data" in caplog.text, "it is said")
        assert [shard.lost for shard in store.shards] == [True, False]


def test_leases_on_other_shards_are_released_while_one_is_lost(machines):
    with serving.Bench(store=machines.url) as bench, contextlib.closing(open_store(machines.url)) as other:
        at = on_each(bench.store, bench.create)
        (lost, _), (lost_id, there_id) = at, at.values()
        leases = bench.sessions.queues.leases
        for session_id in at.values():
            other.claim([session_id], leases.holder)
        leases._unreleased = {lost_id: None, there_id: None}
        machines.kill(lost)
        wait_until(lambda: there_id not in leases._unreleased, "it is released")
        (claimed,) = other.claim([there_id], "w")
        assert claimed.epoch == 2
        assert lost_id in leases._unreleased


def test_time_that_a_shard_has_missed_does_not_count(store):
    start = 10.0**9
    assert store.count_time(start) == Counted(start, 0.0)
    away = store.shards[1]
    away.lost = True
    for seconds in range(0, 1000, 50):
        assert store.count_time(start + seconds) == Counted(start + seconds, 0.0)
    away.lost = False
    counted = store.count_time(start + 1000)
    assert counted.uncounted > 1000 - GAP_SECONDS
    assert counted.now + counted.uncounted == start + 1000
    for shard in store.shards:
        assert shard.store.noted()[:2] == (start + 1000, counted.uncounted)
    assert store.count_time(start + 1001).uncounted == counted.uncounted


# Beside other features


def test_blobs_outside_have_a_name_for_each_shard_and_none_is_swept_that_one_has(store, tmp_path):
    outside = with_blobs_outside(store, f"file://{tmp_path}/blobs", 1)
    body = {"blob": b"x" * 100}
    kept = [*on_each(store, lambda: kept_outside(outside, body)).values()]
    assert len(outside.listed()) >= len(kept) == 3
    assert outside.sweep(age=-1) == 0
    for number, session_id in enumerate(kept, 1):
        outside._cache.pop("blob")
        assert outside.blobs(["blob"]) == body
        for each in (
            [session_id] if number < 3 else [each.id for each, _ in outside.list(SessionQuery(None, {}, "", 999))]
        ):
            outside.delete([each])
    outside._delete_dropped()
    assert outside.listed() == []
    store.shards[0].lost = True
    with pytest.raises(OverloadedError):
        outside.unnamed(["bl/blob.1"])
    store.shards[0].lost = False
    outside._background.shutdown()


def kept_outside(outside, body):
    kept = session()
    outside.create([kept], {"bank": "blob"}, body)
    fork = fork_of(kept)
    outside.create([fork], {"bank": "blob"}, {})
    outside.delete([fork.id])
    return kept.id


@pytest.mark.heavy
def test_two_workers_and_the_command_read_it(url, tmp_path, monkeypatch):
    key = {"TOOLPACK_SECRET_KEY": "a key for this test alone, long enough"}
    monkeypatch.setenv(*next(iter(key.items())))
    with server_process.served(tmp_path, "--workers", "2", "--store", url, **key) as server:
        made = [server.rpc("create_session")["session_id"] for _ in range(6)]
        for each in made:
            server.call(each, "move_to_savings", amount="1.00")
    where = ["--store", url, "--data-dir", str(tmp_path)]
    listed = invoke("session", "list", *where)
    assert listed.exit_code == 0, (listed.output, listed.exception)
    assert all(each[:8] in listed.output for each in made), listed.output
