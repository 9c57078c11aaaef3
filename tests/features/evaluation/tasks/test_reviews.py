"""Reviews of failed rollouts: they name the losing call, and a continuation that would have passed."""

import asyncio
import re

import pytest
import serving
from command_line import run_here
from http_server import running
from serving import PACKS, RpcError

from toolpack_server.client import Client
from toolpack_server.features.evaluation.events.world import WORLD_PACK
from toolpack_server.features.evaluation.tasks import reviews
from toolpack_server.features.evaluation.tasks.solution_progress import match_solution
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.loading import load_catalog
from toolpacks.errands import toolpack

CATALOG = load_catalog((PACKS,), ("bank", "chores", "ledger"))
NEW_RENT = {
    "recipient": "DE89370400440532013000",
    "amount": "1080.00",
    "subject": "Rent, Deichweg 3",
    "interval_months": 1,
    "first_day": "2026-04-01",
}
LOSING = [
    ("list_standing_orders", {}),
    ("cancel_standing_order", {"order_id": 1}),
    ("cancel_standing_order", {"order_id": 99}),
    ("move_from_savings", {"amount": "3000.00"}),
    ("send_money", {"recipient": NEW_RENT["recipient"], "amount": "2160.00", "subject": "Deposit of my flat"}),
    ("cancel_standing_order", {"order_id": 3}),
    ("cancel_standing_order", {"order_id": 2}),
]


@pytest.fixture(scope="module")
def url():
    with running(CATALOG, store="memory:", log_calls="off") as served:
        yield served


@pytest.fixture(scope="module")
def bench():
    with serving.Bench(CATALOG) as server:
        yield server


def play(bench, task, calls, answer="Done.", **params):
    session = bench.rpc("create_session", task=task, **params)
    key = session["agent_path"].removeprefix("/agents/")
    for function, kwargs in calls:
        bench.rpc("run_function", agent_key=key, function=function, kwargs=kwargs)
    if answer is not None:
        bench.rpc("submit_answer", agent_key=key, answer=answer)
    return session["session_id"]


def forks(bench, session_id):
    return bench.rpc("list_sessions", parent=session_id)


def test_review_names_the_losing_call_and_a_winning_continuation(bench):
    session_id = play(bench, "bank/moving-out", LOSING)
    review = bench.rpc("review_session", session_id=session_id)
    assert review["lost"] == 5
    assert review["summary"].startswith("Lost at call 5, cancel_standing_order(order_id=3): the value fell from 1.00")
    marks = [(each["mark"], each["before"], each["after"]) for each in review["records"]]
    assert marks == [
        ("read", 1.0, 1.0),
        ("solution", 1.0, 1.0),
        ("failed", 1.0, 1.0),
        ("own", 1.0, 1.0),  # another amount than the solution's
        ("own", 1.0, 1.0),  # another subject
        ("lost", 1.0, 0.0),
        ("solution", 0.0, 0.0),
        ("end", 0.0, 0.0),
    ]
    line = review["line"]
    assert (line["version"], line["reward"]) == (3, 1.0)
    assert sorted(call["function"] for call in line["calls"]) == ["cancel_standing_order", "create_standing_order"]
    (turned,) = [
        after["name"]
        for before, after in zip(review["steps"][3]["checks"], review["steps"][4]["checks"], strict=True)
        if before["passed"] and not after["passed"]
    ]
    assert "other standing orders" in turned
    assert forks(bench, session_id) == []


def test_review_names_the_call_that_was_never_made(bench):
    session_id = play(bench, "bank/moving-out", LOSING[:2])
    review = bench.rpc("review_session", session_id=session_id)
    assert "lost" not in review
    assert {call["function"] for call in review["never_called"]} >= {"create_standing_order", "send_money"}
    assert review["summary"].startswith("No call lost it: ")
    assert "were never made. At the end, " in review["summary"]
    assert review["records"][-1]["mark"] == "end"
    assert review["line"]["reward"] == 1


WAIT = ("wait", {"seconds": 7200, "until_something_happens": False})


@pytest.fixture(scope="module")
def errands():
    catalog = Catalog({"errands": toolpack, "world": WORLD_PACK})
    with serving.Bench(catalog) as server:
        yield server


@pytest.mark.parametrize(
    ("task", "calls"),
    [
        ("kettle", [("order", {"item": "kettle"}), WAIT, ("list_parcels", {})]),
        ("bread", [("put_bread_in", {}), WAIT, ("take_bread_out", {})]),
    ],
)
def test_a_call_that_waited_too_long_is_the_losing_call(errands, task, calls):
    session_id = play(errands, f"errands/{task}", calls)
    review = errands.rpc("review_session", session_id=session_id)
    by_index = {each["index"]: each for each in errands.rpc("get_trace", session_id=session_id)}
    assert review["summary"].startswith(f"Lost at call {review['lost']}, wait(seconds=7200")
    assert (by_index[review["lost"]]["function"], review["lost_at"], review["line"]["version"]) == ("wait", "wait", 1)
    assert any(each.get("by") == "world" for each in by_index.values())
    own = [each["index"] for each in by_index.values() if each.get("by") == "agent" or each["kind"] == "answer"]
    assert [each["index"] for each in review["records"]] == own


def test_review_of_a_wrong_or_missing_answer(bench):
    dishes = [("do", {"chore": "dishes"})] * 2
    for answer, message in (
        ("None.", "Lost at the answer: the value fell from 1.00 to 0.00."),
        (None, "never answered"),
    ):
        session_id = play(bench, "chores/as-the-solution", dishes, answer)
        review = bench.rpc("review_session", session_id=session_id)
        assert message in review["summary"]
        assert review.get("lost") == (None if answer is None else 2)
        assert (review["line"]["calls"], review["line"]["answer"]) == ([], "1,000 times\nDISHES")


def test_review_blames_no_call_of_a_rollout_that_passed(bench):
    calls = [(call["function"], call["kwargs"]) for call in solution(bench, "bank/moving-out")]
    review = bench.rpc("review_session", session_id=play(bench, "bank/moving-out", calls))
    assert (review["passed"], "lost" in review, "line" in review) == (True, False, False)
    assert review["summary"] == "Passed with the reward 1: no call lost it."


def solution(bench, task):
    session_id = bench.rpc("create_session", task=task)["session_id"]
    return bench.rpc("get_solution", session_id=session_id)["calls"]


def test_review_without_a_known_way_to_win_names_no_call(bench):
    review = bench.rpc("review_session", session_id=play(bench, "chores/returns-false", [("rest", {})]))
    assert "lost" not in review
    assert "No known continuation" in review["summary"]
    session_id = play(bench, "chores/raises", [("rest", {})])
    assert "no valid verdict" in bench.rpc("review_session", session_id=session_id)["summary"]
    with pytest.raises(RpcError, match="The session has no task, so no reward can be lost"):
        bench.rpc("review_session", session_id=bench.create("chores"))


MAIL = '''
"""A draft that is sent, once or as often as you like."""

from typing import Annotated

from pydantic import BaseModel

from toolpack_server import Depends, Task, TaskEnvironment, Toolpack, reached_solution


class Lines(BaseModel):
    draft: list[str] = []
    sent: list[str] = []
    shown: list[str] = []


class MailEnvironment(TaskEnvironment):
    lines: Lines = Lines()


toolpack = Toolpack("mail", MailEnvironment)
TheLines = Annotated[Lines, Depends("lines")]


@toolpack.function
def write(lines: TheLines, line: str) -> None:
    """Write a line.

    :param line: Its text.
    """
    lines.draft.append(line)


@toolpack.function
def send(lines: TheLines) -> None:
    """Send the draft, the first time."""
    lines.sent = lines.sent or [*lines.draft]


@toolpack.function
def show(lines: TheLines) -> None:
    """Show the draft."""
    lines.shown = [*lines.draft]


WRITES = [("write", {"line": "a"}), ("write", {"line": "b"})]
toolpack.add_task(Task("once", "Send a and b.", reached_solution(), solution=[*WRITES, ("send", {})]))
toolpack.add_task(Task("often", "Show a and b.", reached_solution(), solution=[*WRITES, ("show", {})]))
toolpack.add_task(Task("open", "Send anything.", lambda rollout: bool(rollout.environment.lines.sent)))
'''


@pytest.fixture(scope="module")
def mail(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packs")
    (folder / "mail.py").write_text(MAIL, encoding="utf-8")
    with serving.Bench(load_catalog((folder,), ("mail",))) as server:
        yield server


def test_a_review_of_an_early_call_names_the_missing_call(mail):
    session_id = play(mail, "mail/once", [("write", {"line": "a"}), ("send", {})])
    review = mail.rpc("review_session", session_id=session_id)
    assert (review["lost"], review["lost_at"]) == (1, "write was not made before send")
    assert 'Lost at call 1, send(), made without write(line="b") before it: the value' in review["summary"]
    assert [call["kwargs"] for call in review["never_called"]] == [{"line": "b"}]


def test_calls_may_be_repeated_after_a_missing_one(mail):
    session_id = play(mail, "mail/often", [("write", {"line": "a"}), ("show", {})])
    review = mail.rpc("review_session", session_id=session_id)
    assert ("lost" in review, review["lost_at"]) == (False, "write was never made")
    assert [call["function"] for call in review["line"]["calls"]] == ["write", "show"]


def test_without_a_solution_a_sibling_that_passed_shows_the_way(mail, monkeypatch):
    """Comparing many calls takes long, so it doesn't run on the event loop."""

    def compared(*args):
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        compared_in_threads.append(args)
        return match_solution(*args)

    compared_in_threads = []
    monkeypatch.setattr(reviews, "match_solution", compared)
    labels = {"run": "one"}
    calls = [("write", {"line": "x"}), ("send", {})]
    failed = play(mail, "mail/open", calls[:1], labels={**labels, "rollout": "0"})
    assert "No known continuation" in mail.rpc("review_session", session_id=failed)["summary"]
    sibling = play(mail, "mail/open", calls, labels={**labels, "rollout": "1"})
    review = mail.rpc("review_session", session_id=failed)
    assert (review["sibling"], review["lost_at"]) == (sibling, "send was never made")
    assert f"those of the rollout {sibling[:8]}, which passed" in review["summary"]
    assert compared_in_threads


def test_the_sibling_is_found_among_many_rollouts(mail, monkeypatch):
    """The sibling may be on a further page, may have no answer, and may be older than all evaluated rollouts."""
    monkeypatch.setattr(reviews, "MAX_EVALUATIONS", 2)
    monkeypatch.setattr("toolpack_server.features.evaluation.tasks.summaries._MAX_SECONDS", 0)  # one session a page
    labels = {"run": "large"}
    sibling = play(mail, "mail/open", [("write", {"line": "x"}), ("send", {})], None, labels=labels)
    failed = [play(mail, "mail/open", [("write", {"line": "x"})], labels=labels) for _ in range(4)]
    assert "sibling" not in mail.rpc("review_session", session_id=failed[0])
    mail.rpc("evaluate_session", session_id=sibling, record=True)
    assert mail.rpc("review_session", session_id=failed[0])["sibling"] == sibling
    monkeypatch.setattr(reviews, "MAX_LISTED", 4)
    assert "sibling" not in mail.rpc("review_session", session_id=failed[0])


def test_an_unrecorded_sibling_is_judged_after_the_rollout_itself(mail, monkeypatch):
    monkeypatch.setattr(reviews, "MAX_EVALUATIONS", 1)
    labels = {"run": "unrecorded"}
    sibling = play(mail, "mail/open", [("write", {"line": "x"}), ("send", {})], None, labels=labels)
    failed = play(mail, "mail/open", [("write", {"line": "x"})], labels=labels)
    assert mail.rpc("review_session", session_id=failed)["sibling"] == sibling


def test_forks_of_a_review_count_as_no_rollouts(mail):
    session_id = play(mail, "mail/once", [])
    mail.rpc("review_session", session_id=session_id, record=True)
    page = mail.rpc("summarize_sessions", evaluate=True)
    ids = {each["session_id"] for each in page["sessions"] if session_id in each["labels"].values()}
    assert len(ids) == 2
    (rate,) = [rate for rate in page["rates"] if rate["task"] == "mail/once"]
    assert rate["rollouts"] == sum(each["task"] == "mail/once" and not each["labels"] for each in page["sessions"])


def test_a_users_own_label_review_makes_no_fork_of_a_review(mail):
    labels = {"review": "yes", "run": "mine"}
    session_id = play(mail, "mail/once", [], labels=labels)
    mail.rpc("fork_session", session_id=session_id)  # this fork has the same labels
    mail.rpc("review_session", session_id=session_id, record=True)
    (rate,) = mail.rpc("summarize_sessions", labels={"run": "mine"}, evaluate=True)["rates"]
    assert rate["rollouts"] == 2


def test_a_stored_review_lasts_until_the_next_record(bench):
    session_id = play(bench, "bank/moving-out", LOSING, None)
    review = bench.rpc("review_session", session_id=session_id, record=True)
    played_line = review["line"]["fork"]
    assert bench.rpc("evaluate_session", session_id=played_line)["passed"]
    assert [each["kwargs"] for each in bench.rpc("get_trace", session_id=played_line) if "kwargs" in each] == [
        call["kwargs"] for call in review["line"]["calls"]
    ]
    assert bench.rpc("review_session", session_id=session_id) == review
    assert len(forks(bench, session_id)) == 2
    bench.rpc("run_function", session_id=session_id, function="get_balance")
    assert "fork" not in bench.rpc("review_session", session_id=session_id)["line"]


def test_only_a_fork_that_stores_a_review_counts_as_a_review(bench):
    session_id = play(bench, "bank/moving-out", LOSING, None)
    labels = {"review": session_id, "records": str(len(LOSING))}
    call = {"function": "get_balance"}
    (empty,) = bench.rpc("fork_session", session_id=session_id, labels=labels)
    (called,) = bench.rpc("fork_session", session_id=session_id, labels=labels)
    bench.rpc("run_function", session_id=called["session_id"], **call)
    (fork,) = bench.rpc("fork_session", session_id=session_id, labels=labels)
    bench.rpc("add_message", session_id=fork["session_id"], role="user", content="Mine", metadata={"review": 1})
    other = bench.rpc("create_session", task="bank/moving-out", labels=labels)["session_id"]
    note = {"review": {"session_id": session_id}}
    bench.rpc("add_message", session_id=other, role="user", content="No fork", metadata=note)
    review = bench.rpc("review_session", session_id=session_id, record=True)
    assert review["lost"] == 5
    before = len(forks(bench, session_id))
    assert bench.rpc("review_session", session_id=session_id, record=True) == review
    assert len(forks(bench, session_id)) == before
    for each in (empty, called, fork):
        bench.rpc("close_session", session_id=each["session_id"])


def test_a_long_rollout_needs_few_forks(bench, monkeypatch):
    """Halving finds the same call as evaluating each step."""
    calls = [("move_to_savings", {"amount": "0.01"})] * 3 + LOSING + [("move_to_savings", {"amount": "0.01"})] * 3
    session_id = play(bench, "bank/moving-out", calls)
    every = bench.rpc("review_session", session_id=session_id)
    monkeypatch.setattr(reviews, "MAX_STEPS", 4)
    halved = bench.rpc("review_session", session_id=session_id)
    assert len(halved["steps"]) < len(every["steps"])
    assert (halved["lost"], halved["records"], halved["summary"]) == (8, every["records"], every["summary"])


def played_at(url, calls, answer, run="one"):
    with Client(url) as client:
        session = client.create_session(task="bank/moving-out", labels={"run": run})
        for function, kwargs in calls:
            client.agent(session).run_function(function, kwargs)
        client.agent(session).submit_answer(answer)
        return session["session_id"]


def test_evaluate_writes_a_review_as_one_file(url, tmp_path):
    markup = '<img src=x onerror="alert(1)">&'
    session_id = played_at(url, LOSING, markup)
    file = tmp_path / "review.html"
    result = run_here("evaluate", "--url", url, "--review", session_id, file)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    wrong = run_here("evaluate", "--url", url, "--review", "none", tmp_path / "none.html")
    assert wrong.returncode == 1
    assert "Traceback" not in wrong.stderr
    text = file.read_text(encoding="utf-8")
    assert "<script" not in text
    assert markup not in text
    assert "&lt;img src=x onerror=" in text
    assert "script-src" not in text
    assert re.findall(r"style-src 'sha256-[^']+'", text)
    assert text.count("Lost at call 5, cancel_standing_order") == 1
    assert f"{url}/console/#/sessions/{session_id}?record=5" in text
    assert text.count('class="turned"') == 1


def test_evaluate_counts_the_calls_that_lost_a_run(url, tmp_path):
    for calls in (LOSING, LOSING, LOSING[:2]):
        played_at(url, calls, "Done.", "lost")
    result = run_here("evaluate", "--url", url, "--label", "run=lost", "--lost", "--html", str(tmp_path / "run.html"))
    assert result.stdout.splitlines()[-2:] == [
        "2 of 3 failures: cancel_standing_order",
        "1 of 3 failures: cancel_standing_order was never made",
    ]
    assert (tmp_path / "run.html").read_text(encoding="utf-8").count('"lost_at":') == 3
