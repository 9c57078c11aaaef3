"""Runs at a glance, in a real browser: in the console, and in the file that `evaluate --html` writes."""

import re

import browser as browsers
import pytest
import server_process
from command_line import invoke

from server.features.tasks.pass_rates import all_of, any_of, rates
from server.features.tasks.report import ENTRY, one_script

MARKUP = '<img src=x onerror="window.ran=1">'
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


@pytest.fixture(scope="module")
def window(server, tmp_path_factory):
    with browsers.browser(server.url, tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(window):
    """The browser; whatever a test did, no script of a session's ran, nothing tried to, and no script failed."""
    window.resize(1280)
    window.driver.get("about:blank")
    yield window
    assert window.run("return [window.ran, window.violations]") == [0, []]
    assert window.run("return document.querySelectorAll('main :is(img, script, iframe)').length") == 0
    window.resize(1280)


def play(server, task, run, number, *, passes, record=False):
    labels = {"run": run, "rollout": str(number), MARKUP[:40]: MARKUP}
    session_id = server.rpc("create_session", task=task, labels=labels)["session_id"]
    if passes and task != RAISES:
        for call in server.rpc("get_solution", session_id=session_id)["calls"]:
            server.call(session_id, call["function"], **call["kwargs"])
    server.rpc("submit_answer", session_id=session_id, answer=f"{MARKUP} I am rollout {number} of {run}.")
    if record:
        server.rpc("evaluate_session", session_id=session_id, record=True)
    return session_id


def states(page, task):
    """The states of a task's cells, in order."""
    row = page.find(".grid tbody tr", task)
    return [cell.get_attribute("class").split()[1] for cell in row.find_elements("css selector", "a.cell")]


def read(page):
    page.until(
        lambda: page.run("return document.querySelector('.grid') && !document.querySelector('[role=status].hint')"),
        "the end",
    )


def test_a_run_is_a_grid_of_tasks_and_rollouts_with_its_figures(page, server):
    page.open("#/runs?by=run&run=new")
    page.sees("9 rollouts of 3 tasks", "6/8 75%", "1 invalid", "Invalid ones count nowhere")
    read(page)
    assert states(page, SAVE) == ["passed", "passed", "passed", "failed"]
    assert states(page, RAISES) == ["invalid"]
    assert "0/0" in page.find(".grid tbody tr", RAISES).text
    assert server.rpc("list_sessions", labels={"run": "new"}, passed=True) == []  # looking records nothing
    verdicts = server.rpc("evaluate_sessions", labels={"run": "new"})["verdicts"]
    found = rates(verdicts)
    for chance, name in ((all_of, "pass^k"), (any_of, "pass@k")):
        means = [f"k={k}: {round(100 * sum(chance(rate, k) for rate in found) / len(found))}%" for k in (1, 2, 3, 4)]
        assert f"{name} {', '.join(means)}" in page.run("return document.querySelector('svg title').textContent")
    page.find("a.cell", "✗").click()
    page.at("#/sessions/")
    page.sees("failed", "rollout=3")


def test_rollouts_are_filtered_by_verdict_task_label_and_text_in_the_trace(page):
    page.open("#/runs?by=run&run=old")
    read(page)
    page.write("verdict", "failed")
    page.click("Filter")
    page.sees("Rollouts like that: 6", "8 rollouts of 2 tasks")  # the figures are the run's
    page.write("task", "DENTIST")
    page.click("Filter")
    page.sees("Rollouts like that: 3", "4 rollouts of 1 task")
    page.write("text", "i am ROLLOUT 2")
    page.click("Filter")
    page.sees("Rollouts like that: 1")
    assert len(page.driver.find_elements("css selector", "a.cell.faded")) == 3
    page.click("Clear", "form a")
    page.until(lambda: "like that" not in page.text(), "all of them")
    page.write("label", "rollout=1")
    page.click("Filter")
    page.sees("2 rollouts of 2 tasks")


def test_a_run_against_another_says_what_changed(page):
    page.open("#/runs?by=run&run=new&against=old&order=-change")
    read(page)
    page.sees("2 of 2 tasks better, 0 worse, 4 rollouts passed that had failed, 0 failed that had passed")
    page.sees("1 task that it doesn't have")
    row = page.find(".grid tbody tr", SAVE)
    assert "+50" in row.text
    assert "from 1/4" in row.text
    changed = [cell.get_attribute("aria-label") for cell in row.find_elements("css selector", "a.other")]
    assert changed == [f"{SAVE}, rollout {n}: passed, was failed" for n in (1, 2)]
    page.write("verdict", "changed")
    page.click("Filter")
    page.sees("Rollouts like that: 4")


def test_all_runs_stand_side_by_side_for_any_label(page):
    page.open("#/runs")
    page.sees("3 runs", "9 rollouts without a recorded verdict", "2/8 25%", "9 not evaluated")
    assert len(page.driver.find_elements("css selector", "figure.chart svg[role=img]")) == 4
    page.click(MARKUP, "tbody a")
    page.sees("2/8 25%")
    read(page)
    page.click("All runs")
    page.until(lambda: page.find("#run-key").send_keys("rollout") or True, "another label")
    page.at("#/runs?by=rollout")
    page.sees("4 runs", "rollout")


def test_tables_are_sorted_by_their_heads(page):
    page.open("#/runs?by=run&run=new")
    read(page)

    def first():
        return page.find(".rollouts tbody tr").text

    page.click("Verdict", ".rollouts th a")
    page.until(lambda: "passed" in first(), "passed first")
    page.click("Verdict", ".rollouts th a")
    page.until(lambda: "failed" in first(), "failed first")
    assert page.find(".rollouts th[aria-sort=ascending]").text == "Verdict ↑"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_pages_fit_into_400_pixels(page, dark):
    page.resize(400, dark=dark)
    for place in ("#/runs", "#/runs?by=run&run=new&against=old", f"#/runs?by=run&run={MARKUP}"):
        page.open(place)
        page.until(
            lambda: page.run("return document.querySelector('.runs table') && !document.querySelector('[aria-busy]')"),
            place,
        )
        assert page.run("return document.documentElement.scrollWidth") <= 400, place


def test_evaluate_writes_the_same_page_as_one_file(page, server, tmp_path):
    file = tmp_path / "runs.html"
    done = invoke("evaluate", "--url", server.url, "--html", str(file))
    assert done.exit_code == 1, done.stderr  # as one is invalid
    text = file.read_text(encoding="utf-8")
    assert MARKUP not in text
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text) == []
    page.driver.get(f"file://{file}#/runs?by=run&run=new")
    page.sees("9 rollouts of 3 tasks", "6/8 75%", "1 invalid")
    assert states(page, SAVE) == ["passed", "passed", "passed", "failed"]
    page.find("a.cell", "✗").click()
    page.sees("What was called and said", MARKUP, "I am rollout 3 of new", "Open in the console", "Checks")
    page.write("text", "rollout 2 of")
    page.click("Filter")
    page.sees("Rollouts like that: 2")
    page.driver.get("about:blank")
    page.driver.get(f"file://{file}")
    page.sees("3 runs", MARKUP)


def test_the_one_script_has_all_that_its_modules_import():
    """A name that isn't exported in the way that `one_script` knows would be undefined there."""
    script = one_script(ENTRY)
    exported = {
        name: set(names.split(", "))
        for name, names in re.findall(r"^const \$(\w+) = .*?^return \{ (.*?) \};$", script, re.MULTILINE | re.DOTALL)
    }
    wanted = re.findall(r"^const \{ (.*) \} = \$(\w+);$", script, re.MULTILINE)
    assert wanted
    for names, module in wanted:
        assert {name.split(":")[0] for name in names.split(", ")} <= exported[module], module
    assert "</script" not in script
    assert not re.findall(r"^(?:import|export)\b", script, re.MULTILINE)
