"""The page of runs in a real browser: in the console, and in the file that `evaluate --html` writes."""

import re

import pytest
import server_process
from command_line import invoke

from toolpack_server.features.evaluation.tasks.pass_rates import pass_all, pass_any, rates
from toolpack_server.features.evaluation.tasks.report import ENTRY, bundle_script

MARKUP = '<img src=x onerror="window.ran=1">'
ENDS = "</script><!--<script>\u2028"  # This text would end the element with the data if it weren't escaped.
LONG = "w" * 200
CHECK = "the subject is the invoice's"
SAVE, DENTIST, RAISES = "bank/save-300", "bank/pay-dentist", "chores/raises"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ["--store", "memory:", "--packs", "bank,chores,ledger"]
    with server_process.served(tmp_path_factory.mktemp("runs"), *flags) as running:
        for run, passes in (("old", 1), ("new", 3), (MARKUP, 1)):
            for number in range(4):
                for task in (SAVE, DENTIST):
                    play(running, task, run, number, passes=number < passes, record=run != "new")
        play(running, RAISES, "new", 0, passes=True)
        yield running


def play(server, task, run, number, *, passes, record=False):
    labels = {"run": run, "rollout": str(number), MARKUP[:40]: MARKUP}
    session_id = server.rpc("create_session", task=task, labels=labels)["session_id"]
    if passes and task != RAISES:
        for call in server.rpc("get_solution", session_id=session_id)["calls"]:
            server.call(session_id, call["function"], **call["kwargs"])
    server.rpc("submit_answer", session_id=session_id, answer=f"{MARKUP} I am rollout {number} of {run}. {ENDS}")
    if record:
        server.rpc("evaluate_session", session_id=session_id, record=True)
    return session_id


def states(page, task):
    """Return the states of a task's cells, in order."""
    row = page.find(".grid tbody tr", task)
    return [cell.get_attribute("class").split()[1] for cell in row.find_elements("css selector", "a.cell")]


def page_content(page):
    page.until(
        lambda: page.run("return document.querySelector('.grid') && !document.querySelector('progress')"),
        "the end",
    )


def test_run_is_shown_as_a_grid_with_its_figures(page, server):
    page.open("#/runs?by=run&run=new")
    page.sees("9 rollouts of 3 tasks", "6/8 75%", "1 invalid", "Invalid ones aren't counted")
    page_content(page)
    assert states(page, SAVE) == ["passed", "passed", "passed", "failed"]
    assert states(page, RAISES) == ["invalid"]
    assert "0/0" in page.find(".grid tbody tr", RAISES).text
    assert server.rpc("list_sessions", labels={"run": "new"}, passed=True) == []  # Reading the page records nothing.
    run = server.rpc("summarize_sessions", labels={"run": "new"}, evaluate=True)["sessions"]
    rates_of_tasks = rates(each["verdict"] for each in run)
    for chance, name in ((pass_all, "pass^k"), (pass_any, "pass@k")):
        means = [
            f"k={k}: {round(100 * sum(chance(rate, k) for rate in rates_of_tasks) / len(rates_of_tasks))}%"
            for k in (1, 2, 3, 4)
        ]
        assert f"{name} {', '.join(means)}" in page.run("return document.querySelector('svg title').textContent")
    page.find("a.cell", "✗").click()
    page.at("#/sessions/")
    page.sees("failed", "rollout=3")


def test_rollouts_are_filtered_by_verdict_task_label_and_text(page):
    page.open("#/runs?by=run&run=old")
    page_content(page)
    page.write("verdict", "failed")
    page.click("Filter")
    page.sees("Rollouts that match: 6", "8 rollouts of 2 tasks")  # The figures are still those of the whole run.
    page.write("task", "DENTIST")
    page.click("Filter")
    page.sees("Rollouts that match: 3", "4 rollouts of 1 task")
    page.write("text", "i am ROLLOUT 2")
    page.click("Filter")
    page.sees("Rollouts that match: 1")
    assert len(page.driver.find_elements("css selector", "a.cell.faded")) == 3
    page.click("Clear", "form a")
    page.until(lambda: "that match" not in page.text(), "all of them")
    page.write("label", "rollout=1")
    page.click("Filter")
    page.sees("2 rollouts of 2 tasks")


def test_failed_checks_are_counted_and_link_to_their_rollouts(page):
    page.open("#/runs?by=run&run=old")
    page_content(page)
    page.click(CHECK, ".faults a")
    page.sees("Rollouts that match: 3")
    assert page.find(".faults a[aria-current]").text.startswith(CHECK)
    page.click(CHECK, ".faults a")
    page.until(lambda: "that match" not in page.text(), "all of them")


def test_session_links_to_its_neighbours_in_the_list(page):
    page.open("#/runs?by=run&run=old&verdict=failed&sort=rollout")
    page_content(page)
    page.find(".rollouts tbody a").click()
    page.sees("1 of 6", "failed")
    first = page.at("#/sessions/")
    page.click("Next")
    page.sees("2 of 6")
    assert page.at("#/sessions/") != first
    page.click("Previous")
    page.until(lambda: page.hash == first, "the first one again")
    page.click("Back to the list")
    page.at("#/runs?by=run&run=old&verdict=failed&sort=rollout")
    page.sees("Rollouts that match: 6")


def test_verdicts_are_not_requested_twice(page):
    page.open("#/runs?by=run&run=new")
    page_content(page)
    count = "return performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/rpc')).length"
    page.click("All runs")
    page.sees("3 runs")
    before = page.run(count)
    page.click("new", "tbody a")
    page_content(page)
    assert states(page, SAVE) == ["passed", "passed", "passed", "failed"]
    assert page.run(count) - before == 1  # one request for the summaries
    page.click("Read again")
    page.until(lambda: page.run(count) - before > 2, "evaluations")


def test_page_continues_after_a_lost_request(page):
    page.open("#/runs")
    page.sees("3 runs")
    page.run(
        "const ask = window.fetch; window.failures = 1;"
        "window.fetch = (...given) => (window.failures-- > 0 ? Promise.reject(new TypeError('away')) : ask(...given));"
    )
    page.click("old", "tbody a")
    page.until(lambda: page.run("return window.failures") < 1, "a failure")
    page_content(page)
    page.sees("8 rollouts of 2 tasks")


def test_comparison_with_another_run_shows_what_changed(page):
    page.open("#/runs?by=run&run=new&against=old&order=-change")
    page_content(page)
    page.sees("2 of 2 tasks better, 0 worse, 4 rollouts passed that had failed, 0 failed that had passed")
    page.sees("1 task that it doesn't have")
    row = page.find(".grid tbody tr", SAVE)
    assert "+50" in row.text
    assert "from 1/4" in row.text
    changed = [cell.get_attribute("aria-label") for cell in row.find_elements("css selector", "a.other")]
    assert changed == [f"{SAVE}, rollout {n}: passed, was failed" for n in (1, 2)]
    page.write("verdict", "changed")
    page.click("Filter")
    page.sees("Rollouts that match: 4")


def test_runs_are_compared_side_by_side_by_any_label(page):
    page.open("#/runs")
    page.sees("3 runs", "9 rollouts without a recorded verdict", "2/8 25%", "9 not evaluated")
    assert len(page.driver.find_elements("css selector", "figure.chart svg[role=img]")) == 4
    page.click(MARKUP, "tbody a")
    page.sees("2/8 25%")
    page_content(page)
    page.click("All runs")
    page.until(lambda: page.find("#run-key").send_keys("rollout") or True, "another label")
    page.at("#/runs?by=rollout")
    page.sees("4 runs", "rollout")


def test_tables_are_sorted_by_their_column_headers(page):
    page.open("#/runs?by=run&run=new")
    page_content(page)

    def first():
        return page.find(".rollouts tbody tr").text

    page.click("Verdict", ".rollouts th a")
    page.until(lambda: "passed" in first(), "passed first")
    page.click("Verdict", ".rollouts th a")
    page.until(lambda: "failed" in first(), "failed first")
    assert page.find(".rollouts th[aria-sort=ascending]").text == "Verdict ↑"


@pytest.fixture(scope="module")
def long_words(server):
    """Return the id of a session with long words in all of its texts."""
    labels = {"long": LONG, MARKUP + LONG[:20]: LONG}
    session_id = server.rpc("create_session", task=DENTIST, labels=labels)["session_id"]
    server.call(session_id, LONG[:60])
    server.rpc("add_message", session_id=session_id, role="assistant", content=LONG)
    server.rpc("evaluate_session", session_id=session_id, record=True)
    return session_id


@pytest.mark.parametrize(("width", "dark"), [pytest.param(1280, False, marks=pytest.mark.long), (400, True)])
def test_no_content_is_wider_than_the_page(page, long_words, width, dark):
    page.resize(width, dark=dark)
    long = f"#/runs?by=long&run={LONG}"
    for address in ("#/runs", "#/runs?by=run&run=new&against=old", "#/runs?by=long", long, f"{long}&against={LONG}"):
        page.open(address)
        page.until(
            lambda: page.run("return document.querySelector('.runs table') && !document.querySelector('progress')"),
            address,
        )
        assert page.run("return document.documentElement.scrollWidth") <= width, address
    for address in ("#/sessions?label=long%3D" + LONG, f"#/sessions/{long_words}"):
        page.open(address)
        page.sees(LONG[:60], "failed")
        assert page.run("return document.documentElement.scrollWidth") <= width, address


def test_evaluate_writes_the_same_page_as_one_file(page, server, tmp_path):
    file = tmp_path / "runs.html"
    result = invoke("evaluate", "--url", server.url, "--html", str(file))
    assert result.exit_code == 1, result.stderr  # The status is 1 because a rollout is invalid.
    text = file.read_text(encoding="utf-8")
    assert MARKUP not in text
    assert text.count("</script") == 2
    assert "<!--" not in text
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text) == []
    page.driver.get(f"file://{file}#/runs?by=run&run=new")
    page.sees("9 rollouts of 3 tasks", "6/8 75%", "1 invalid")
    assert states(page, SAVE) == ["passed", "passed", "passed", "failed"]
    page.find("a.cell", "✗").click()
    page.sees(
        "Calls and messages",
        MARKUP,
        "I am rollout 3 of new. </script><!--<script>",
        "Open in the console",
        "Checks",
    )
    page.write("text", "rollout 2 of")
    page.click("Filter")
    page.sees("Rollouts that match: 2")
    page.driver.get("about:blank")
    page.driver.get(f"file://{file}")
    page.sees("3 runs", MARKUP)


def test_one_script_has_all_that_its_modules_import():
    """If `bundle_script` doesn't recognize the export of a name, the name would be undefined in the script."""
    script = bundle_script(ENTRY)
    exported = {
        name: set(names.split(", "))
        for name, names in re.findall(r"^const \$(\w+) = .*?^return \{ (.*?) \};$", script, re.MULTILINE | re.DOTALL)
    }
    imports = re.findall(r"^const \{ (.*) \} = \$(\w+);$", script, re.MULTILINE)
    assert imports
    for names, module in imports:
        assert {name.split(":")[0] for name in names.split(", ")} <= exported[module], module
    assert "</script" not in script
    assert not re.findall(r"^(?:import|export)\b", script, re.MULTILINE)
