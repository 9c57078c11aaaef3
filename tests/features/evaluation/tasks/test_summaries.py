"""`summarize_sessions`: one request for many sessions, which by default neither evaluates nor renews them."""

from functools import partial

import pytest
from serving import in_parts, refused
from test_tasks import CATALOG, begin, verdict

RUN = {"run": "1"}


@pytest.fixture(params=["memory", "sqlite", "redis"])
def bench(request, store_url, make_bench):
    return make_bench(CATALOG, store_url(request.param))


def summaries(bench, **params):
    return bench.rpc("summarize_sessions", **{"labels": RUN, **params})


def search(bench, text):
    return [each["session_id"] for each in summaries(bench, text=text)["sessions"]]


def test_summary_has_counts_and_the_recorded_verdict(bench):
    session_id, _ = begin(bench, "chores/dishes", labels=RUN)
    bench.call(session_id, "do", chore="dishes")
    bench.call(session_id, "do", chore="dishes", times="many")
    before = bench.rpc("list_sessions", labels=RUN)
    (summary,) = summaries(bench)["sessions"]
    expected = {name: before[0][name] for name in ("session_id", "task", "labels", "version", "expires_at")}
    expected |= {
        "records": 2,
        "calls": 2,
        "errors": 1,
        "last_function": "do",
        "done": False,
    }
    assert {name: summary[name] for name in expected} == expected
    assert {"parent", "verdict", "variant", "problem"} & summary.keys() == set()
    assert summary["duration_ms"] > 0
    bench.rpc("submit_answer", session_id=session_id, answer="Done.")
    recorded = verdict(bench, session_id, record=True)
    (summary,) = summaries(bench)["sessions"]
    assert (summary["done"], summary.get("verdict"), summary.get("problem"), summary["records"]) == (
        True,
        recorded,
        None,
        4,
    )
    bench.rpc("reset_session", session_id=session_id)
    (summary,) = summaries(bench)["sessions"]
    # The session continues, and undone calls still count.
    assert (summary["done"], summary.get("verdict"), summary["calls"]) == (False, None, 2)


def test_summary_of_a_fork_counts_only_its_own_calls(bench):
    session_id, _ = begin(bench, "chores/dishes", labels=RUN)
    bench.call(session_id, "do", chore="dishes")
    (fork,) = bench.rpc("fork_session", session_id=session_id)
    by_id = {each["session_id"]: each for each in summaries(bench)["sessions"]}
    assert by_id[fork["session_id"]].get("parent") == {"session_id": session_id, "version": 1}
    assert [by_id[each]["calls"] for each in (session_id, fork["session_id"])] == [1, 0]


def test_sessions_are_searched_by_the_text_of_their_records(bench):
    zoes, toms = (begin(bench, "chores/dishes", labels={**RUN, "model": name})[0] for name in ("Zoe", "Tom"))
    bench.call(zoes, "do", chore='the "Äpfel"')
    bench.rpc("add_message", session_id=toms, role="assistant", content="Nothing to DO here")
    assert search(bench, 'THE "') == search(bench, "äpfel") == search(bench, "zoe") == [zoes]
    assert search(bench, "to do here") == search(bench, toms[5:40].upper()) == [toms]
    assert sorted(search(bench, "")) == sorted(search(bench, "chores/dishes")) == sorted([zoes, toms])
    assert search(bench, "duration_ms") == search(bench, "nobody said this") == []


def test_summaries_come_in_parts(bench, monkeypatch):
    sessions = sorted(begin(bench, "chores/dishes", labels=RUN)[0] for _ in range(5))
    parts = in_parts(partial(summaries, bench), limit=2)
    assert [each["session_id"] for part in parts for each in part["sessions"]] == sessions
    newest = summaries(bench, order="-created")["sessions"]
    assert [each["created_at"] for each in newest] == sorted((each["created_at"] for each in newest), reverse=True)
    monkeypatch.setattr("toolpack_server.features.evaluation.tasks.summaries._MAX_SECONDS", 0)
    part = summaries(bench)
    assert [len(part["sessions"]), part.get("next")] == [1, sessions[0]]
    part = summaries(bench, text="nobody said this")  # A part may be empty before the end of the search.
    assert part == {"sessions": [], "rates": [], "next": sessions[0]}


def test_other_owners_and_agents_get_no_summaries(bench):
    _, key = begin(bench, "chores/dishes", labels=RUN)
    assert summaries(bench, labels={"run": "2"}) == {"sessions": [], "rates": []}
    assert refused(-32602, bench.rpc, "summarize_sessions", text="x" * 1001)
    refused(-32601, bench.rpc, "summarize_sessions", agent_key=key)


def test_sessions_are_sorted_and_counted_over_all_pages(bench):
    sessions = [begin(bench, "chores/dishes", labels=RUN)[0] for _ in range(5)]
    calls = dict(zip(sessions, (1, 3, 0, 3, 2), strict=True))
    for session_id, number in calls.items():
        for _ in range(number):
            bench.call(session_id, "do", chore="dishes")
    verdict(bench, sessions[2], record=True)

    def pages(order, **params):
        session_ids, after = [], ""
        while after is not None:
            page = summaries(bench, order=order, after=after, limit=2, **params)
            assert page["total"] == 5
            session_ids += [each["session_id"] for each in page["sessions"]]
            after = page.get("next")
        return session_ids

    assert pages("-calls") == sorted(sorted(sessions), key=lambda each: -calls[each])
    assert pages("calls") == sorted(sorted(sessions), key=calls.get)
    others = sorted(set(sessions) - {sessions[2]})
    assert pages("verdict") == pages("-verdict") == [sessions[2], *others]  # Sessions without a verdict come last.
    created = {each["session_id"]: each["created_at"] for each in summaries(bench)["sessions"]}
    assert pages("created") == sorted(sorted(sessions), key=created.get)
    assert sorted(pages("-created", total=True)) == sorted(sessions)
    assert "total" not in summaries(bench)
    assert summaries(bench, text=sessions[1], order="task")["total"] == 1
    assert summaries(bench, text=sessions[1], total=True)["total"] == 1
    error = refused(-32602, partial(summaries, bench), order="calls", after="0" * 48)
    assert "no matching session" in str(error)
    refused(-32602, partial(summaries, bench), order="calls", evaluate=True)
    refused(-32602, partial(summaries, bench), order="colour")


def test_unchanged_answer_is_not_sent_again(bench):
    session_id, _ = begin(bench, "chores/dishes", labels=RUN)
    first = summaries(bench, known="")
    assert [each["session_id"] for each in first["sessions"]] == [session_id]
    assert summaries(bench, known=first["digest"]) == {"sessions": [], "rates": [], "digest": first["digest"]}
    bench.call(session_id, "do", chore="dishes")
    second = summaries(bench, known=first["digest"])
    assert second["sessions"][0]["calls"] == 1
    assert second["digest"] != first["digest"]
    assert "digest" not in summaries(bench)
