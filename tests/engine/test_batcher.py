"""Requests to create or close sessions are handled in batches, and no request waits for another in its batch."""

import asyncio

import pytest
from serving import PATIENCE, RpcError, wait_until

from toolpack_server.base.errors import DeadlineError, OverloadedError
from toolpack_server.engine.batcher import BATCH_MAX, Batcher


class PendingJobs:
    """Stand-in for the worker's threads: it holds jobs until the test runs them."""

    def __init__(self):
        self.waiting = []

    def do(self, *, timed_out=False):
        pending, self.waiting[:] = [*self.waiting], []
        for job in pending:
            job.run()
            job.complete(timed_out=timed_out)
            job.deliver()


@pytest.fixture
def together():
    """Run a test with a `Batcher` that doubles numbers or refuses them. Return the batches that it ran."""

    def run(test, refuse=lambda _: False):
        batches = []

        async def main():
            pending = PendingJobs()

            def work(numbers):
                batches.append([*numbers])
                return [OverloadedError(f"not {each}") if refuse(numbers) else 2 * each for each in numbers]

            await test(Batcher(pending.waiting.append, work, 1.0, "it may be done"), pending)

        asyncio.run(main())
        return batches

    return run


def outcomes(futures):
    return [future.exception() or future.result() for future in futures]


def test_requests_that_wait_together_run_as_one_batch(together):
    async def test(doubling, pending):
        first = [doubling.do(number) for number in range(3)]
        assert len(pending.waiting) == 1
        pending.do()
        second = doubling.do(3)
        pending.do()
        assert outcomes([*first, second]) == [0, 2, 4, 6]

    assert together(test) == [[0, 1, 2], [3]]


def test_a_batch_has_a_maximum_size(together):
    async def test(doubling, pending):
        futures = [doubling.do(number) for number in range(BATCH_MAX + 2)]
        pending.do()
        await asyncio.sleep(0)  # the next one is submitted on the event loop
        pending.do()
        assert outcomes(futures) == [*range(0, 2 * BATCH_MAX + 4, 2)]

    assert [*map(len, together(test))] == [BATCH_MAX, 2]


def test_a_refused_batch_is_retried_one_by_one(together):
    async def test(doubling, pending):
        futures = [doubling.do(number) for number in range(3)]
        pending.do()
        pending.do()
        assert [*map(str, outcomes(futures))] == ["0", "not 1", "4"]

    assert together(test, refuse=lambda numbers: 1 in numbers) == [[0, 1, 2], [0], [1], [2]]


def test_requests_past_their_deadline_are_not_retried(together):
    async def test(doubling, pending):
        futures = [doubling.do(number) for number in range(2)]
        pending.do(timed_out=True)
        assert not pending.waiting
        assert [type(each) for each in outcomes(futures)] == [DeadlineError, DeadlineError]
        assert "; it may be done." in str(futures[0].exception())

    together(test)


def test_a_disconnected_client_blocks_no_other_answer(together):
    async def test(doubling, pending):
        gone_request, waits = doubling.do(1), doubling.do(2)
        gone_request.cancel()
        pending.do()
        assert waits.result() == 4

    together(test)


def test_requests_refused_before_they_begin_are_answered(together):
    async def test(doubling, pending):
        futures = [doubling.do(number) for number in range(2)]
        for _ in range(2):  # first together, then alone
            refused, pending.waiting[:] = [*pending.waiting], []
            for job in refused:
                job.error = OverloadedError("stopping")
                job.deliver()
        assert [*map(str, outcomes(futures))] == ["stopping", "stopping"]

    assert together(test) == []


def results_and_codes(futures):
    """Return the results of requests, and the codes of refused ones."""
    sizes = []
    for future in futures:
        try:
            sizes.append(future.result(PATIENCE))
        except RpcError as error:
            sizes.append(error.code)
    return sizes


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_crowd_is_created_and_closed_in_few_steps_of_the_store(stored_bench, repeatable):
    bench, created, deleted = stored_bench, [], []
    create, delete = bench.store.create, bench.store.delete
    bench.create()  # from now on the initial environment is cached
    bench.store.create = lambda sessions, *arguments: (create(sessions, *arguments), created.append(len(sessions)))
    bench.store.delete = lambda ids: (delete(ids), deleted.append(len(ids)))[0]
    params = {"toolpacks": ["ledger"], "labels": {"of": "crowd"}}
    with bench.paused():
        call_ids = [f"c{number}" if repeatable else None for number in range(100)]
        sessions = [bench.later("create_session", call_id=each, **params) for each in call_ids]
    ids = [session["session_id"] for session in results_and_codes(sessions)]
    assert len({*ids}) == sum(created) == 100
    assert max(created) > 1
    assert bench.call(ids[7], "add", amount=3)["result"] == 3
    with bench.paused():
        closing = [bench.later("close_session", session_id=each) for each in ids]
    assert results_and_codes(closing) == [True] * 100
    assert sum(deleted) == 100
    assert max(deleted) > 1
    assert bench.store.count() == 1


def test_sessions_of_a_crowd_have_their_own_parameters(bench):
    for toolpacks in (["ledger"], ["ledger", "vault"]):
        bench.create(*toolpacks)
    kinds = [("ann", ["ledger"]), ("bob", ["ledger"]), ("ann", ["ledger", "vault"])]
    parameters = [
        {"owner": owner, "toolpacks": toolpacks, "labels": {"n": str(n)}, "ttl_seconds": 100 + n}
        for n, (owner, toolpacks) in enumerate(kinds * 5)
    ]
    with bench.paused():
        futures = [bench.later("create_session", **each) for each in parameters]
    for each, session in zip(parameters, results_and_codes(futures), strict=True):
        stored, _ = bench.store.get(session["session_id"])
        assert (stored.owner, session["toolpacks"], stored.labels, stored.ttl_seconds) == (
            each["owner"], each["toolpacks"], each["labels"], each["ttl_seconds"]
        )  # fmt: skip


def test_duplicates_in_a_crowd_create_one_session(stored_bench):
    bench = stored_bench
    (was_there,) = [bench.rpc("create_session", toolpacks=["ledger"], call_id="c0")]
    bench.result(was_there["session_id"], "add", amount=2)
    parameters = [
        {"call_id": f"c{number % 5}", "labels": {"n": str(number)} if number > 14 else {}} for number in range(20)
    ]
    with bench.paused():
        futures = [bench.later("create_session", toolpacks=["ledger"], **each) for each in parameters]
    answers = results_and_codes(futures)
    assert answers[0] == was_there
    for number, answer in enumerate(answers):
        assert answer == (-32009 if number > 14 else answers[number % 5]), number
    assert bench.store.count() == 5
    assert [bench.result(each["session_id"], "total") for each in answers[:5]] == [2, 0, 0, 0, 0]


def test_a_crowd_creates_sessions_up_to_the_limit(make_bench):
    bench = make_bench(max_sessions=7)
    bench.create()
    with bench.paused():
        futures = [bench.later("create_session", toolpacks=["ledger"]) for _ in range(20)]
    codes = results_and_codes(futures)
    assert sum(isinstance(each, dict) for each in codes) == 6
    assert codes.count(-32007) == 14
    assert bench.store.count() == 7


def test_in_a_crowd_each_owners_limit_is_its_own(make_bench):
    bench = make_bench(max_sessions=3)
    for _ in range(3):
        bench.create(owner="bob")
    with bench.paused():
        futures = [bench.later("create_session", owner=each, toolpacks=["ledger"]) for each in ("eve", "ann", "bob")]
    *created, refused = results_and_codes(futures)
    assert all(isinstance(each, dict) for each in created)
    assert refused == -32007


def test_each_close_gets_its_own_result(bench):
    own, twice, of_bob = bench.create(owner="ann"), bench.create(owner="ann"), bench.create(owner="bob")
    bench.rpc("run_function", owner="ann", session_id=own, function="add", kwargs={"amount": 1})
    with bench.paused():
        futures = [
            bench.later("close_session", session_id=each, owner="ann") for each in (own, of_bob, "0" * 48, twice, twice)
        ]
    closed = results_and_codes(futures)
    assert closed[:3] == [True, -32001, -32001]
    assert sorted(closed[3:], key=str) == [-32001, True]
    assert [bench.store.get(each) is None for each in (own, twice, of_bob)] == [True, True, False]


def test_a_close_after_another_close_is_refused(bench):
    session = bench.create()
    bench.result(session, "add", amount=1)  # now the session and its owner are cached
    bench.store.delete([session])
    with pytest.raises(RpcError, match="No session has this id"):
        bench.rpc("close_session", session_id=session)
    with pytest.raises(RpcError, match="No session has this id"):
        bench.result(session, "add", amount=1)


def test_the_next_sweep_deletes_rows_of_closed_sessions(make_bench, store_url):
    bench = make_bench(store=store_url("sqlite"))
    session = bench.create()
    bench.result(session, "add", amount=1)

    def rows(table):
        return bench.store._file.read(f"SELECT count(*) FROM {table}")[0][0]

    bench.rpc("close_session", session_id=session)
    assert bench.store.get(session) is None
    assert rows("records") == 1
    with bench.sweeping() as look:
        look(1)
        wait_until(lambda: not any(map(rows, ("sessions", "records", "changes", "blobs", "deleted"))), "the rows to go")
