"""The console in a real browser: what a user sees and does."""

import base64
import json
import re
import runpy
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import server_process
from browser import ActionChains, Keys

from toolpack_server.client import Client

PAGE = Path(__file__).parents[2] / "docs" / "evaluate" / "why.md"
IBAN = "DE02120300000000202051"
MARKUP = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    flags = ["--store", "memory:", "--packs", "bank,chores,errands,ledger,pages,papers,stall,vault"]
    with server_process.served(tmp_path_factory.mktemp("console"), *flags) as running:
        yield running


def bank(server, *calls, **params):
    """Create a session of the bank, make these calls, and return its id."""
    session_id = server.rpc("create_session", toolpacks=["bank"], **params)["session_id"]
    for function, arguments in calls:
        assert server.call(session_id, function, **arguments)["error"] is None
    return session_id


def pay(amount, subject="Books"):
    return "send_money", {"recipient": IBAN, "amount": amount, "subject": subject}


THREE = (("get_balance", {}), pay("25.00"), ("move_to_savings", {"amount": "500.00"}), pay("900.00", "Refund"))


def version(server, session_id):
    return server.rpc("get_session", session_id=session_id)["version"]


def balance(server, session_id):
    return server.rpc("get_environment", session_id=session_id, pointer="/bank/account/balance")


def test_empty_session_list_says_how_to_create_a_session(page, server):
    for session in server.rpc("list_sessions"):
        server.rpc("close_session", session_id=session["session_id"])
    page.open()
    page.sees("There are no sessions yet", "Create one")
    page.click("New session", ".empty a")
    page.at("#/new")


def test_create_a_session_with_options_and_labels(page, server):
    page.open()
    page.click("New session")
    for toolpack in ("chores", "ledger", "pages", "papers", "stall"):
        page.until(lambda name=toolpack: page.find(f"input[value={name}]").click() or True, "a click")
    page.write("balance", "77.50")
    page.write("labels", "run=first, model=m")
    page.click("Create session")
    session_id = page.at("#/sessions/").split("/")[2]
    page.sees("There are no calls yet", "run=first", "model=m", "version 0")
    session = server.rpc("get_session", session_id=session_id)
    assert (session["toolpacks"], session["labels"]) == (["bank"], {"run": "first", "model": "m"})
    assert balance(server, session_id) == "77.50"


def test_fork_a_moving_world_without_an_event(page, server):
    session_id = server.rpc("create_session", toolpacks=["errands"])["session_id"]
    server.call(session_id, "order", item="kettle")
    page.open(f"#/sessions/{session_id}")
    page.sees("Coming", "It is 2026-03-02 09:00:30 in this world", "courier_rings")
    page.click("Fork without courier_rings")
    page.sees("without the event courier_rings")
    fork = page.at("#/sessions/").split("/")[2]
    coming = server.rpc("get_events", session_id=fork)["coming"]
    assert [event["event"] for event in coming] == ["fare_moves"]
    server.call(session_id, "wait", seconds=7200)
    page.open(f"#/sessions/{session_id}")
    page.click("courier_rings", ".steps strong")
    page.sees("event courier_rings", "by the world", "Fork without courier_rings")


def test_run_a_function_and_see_its_changes(page, server):
    session_id = bank(server)
    page.open(f"#/sessions/{session_id}?run=send_money")
    for name, text in {"recipient": IBAN, "amount": "25.00", "subject": "Books"}.items():
        page.write(name, text)
    page.click("Run", ".actions button.primary")
    page.click("See what it changed")
    page.sees("Step 0: send_money", "version 0 → 1", "What this step changed")
    changed = [row.text for row in page.driver.find_elements("css selector", ".side .changes tr")]
    assert changed[0].split() == ["/bank/account/balance", "changed", "1840.25", "→", "1815.25"]
    marked = page.find(".tree li.changed", "balance")
    assert '"1840.25" → "1815.25"' in marked.text
    assert "changed" in marked.text
    assert "added" in page.find(".tree li.added").text
    assert balance(server, session_id) == "1815.25"


LOSES = """
window.losses = arguments[1]; const there = fetch;
window.fetch = async (url, options) => {
  const answer = await there(url, options);
  if (!options.body.includes(arguments[0]) || window.losses-- <= 0) return answer;
  throw new TypeError("lost");
};
"""


@pytest.mark.parametrize("losses", [1, 4])
def test_call_with_a_lost_answer_runs_once(page, server, losses):
    session_id = bank(server)
    page.open(f"#/sessions/{session_id}?run=move_to_savings")
    page.write("amount", "40.25")
    page.run(LOSES, '"run_function"', losses)
    page.click("Run", ".actions button.primary")
    if losses > 1:
        page.sees("No answer", "this may have been done")
        assert "The world has not changed." not in page.text()
        page.click("Send again")
    page.sees("Result", "-40.25")
    assert len(server.rpc("get_trace", session_id=session_id)) == version(server, session_id) == 1


def test_failed_function_leaves_the_world_unchanged(page, server):
    session_id = bank(server)
    page.open(f"#/sessions/{session_id}?run=move_to_savings")
    page.write("amount", "99999")
    page.click("Run", ".actions button.primary")
    page.sees("The account holds only 1840.25 euros", "The world has not changed.")


def test_fork_with_a_lost_answer_is_made_once(page, server):
    session_id = bank(server, pay("1.00"))
    page.open(f"#/sessions/{session_id}")
    page.find("button", "Fork after")
    page.run(LOSES, '"fork_session"', 2)
    page.click("Fork after")
    page.sees("This is the new fork of version 1.")
    assert len(server.rpc("list_sessions", parent=session_id)) == 1


def test_nested_calls_are_shown_with_their_results(page, server):
    nested = {"amount": {"$call": {"function": "get_balance", "args": {}}}}
    session_id = bank(server, ("move_to_savings", nested))
    page.open(f"#/sessions/{session_id}")
    page.click("move_to_savings", ".steps a")
    page.sees("Nested calls, in order of execution", "get_balance({})", "→ 1840.25")


def test_try_a_function_without_keeping_its_effect(page, server):
    session_id = bank(server)
    before = server.rpc("list_sessions")
    page.open(f"#/sessions/{session_id}?run=move_to_savings")
    page.write("amount", "40.25")
    page.click("Try at version 0")
    page.sees("It would change", "/bank/savings/balance", "1800.00")
    assert (version(server, session_id), server.rpc("get_trace", session_id=session_id)) == (0, [])
    assert [s["session_id"] for s in server.rpc("list_sessions")] == [s["session_id"] for s in before]


def test_fork_at_a_step_and_compare(page, server):
    session_id = bank(server, *THREE)
    page.open(f"#/sessions/{session_id}?version=2")
    page.sees("Step 2: move_to_savings")
    page.click("Fork before")
    page.until(lambda: session_id not in page.hash, "the fork")
    page.sees("fork of", "at version 1", "Start", "console=fork")
    page.click("Compare with parent")
    page.sees("Both worlds are equal")
    page.write("Av", "3")
    page.click("Compare", "form button")
    page.sees("differences")
    page.sees('A "415.25" → B "1815.25"', "only in A", "differs")


def test_find_the_call_that_moved_money_and_replay_without_it(page, server):
    session_id = bank(server, *THREE, ("get_balance", {}), pay("10.00", "Tea"), labels={"run": "7"})
    page.open()
    page.click(session_id[:8])
    row = page.find(".steps li:has(.did span)", "900.00")
    assert "account/balance" in row.text
    row.click()
    page.sees("Step 3: send_money")
    page.click("Replay without this call")
    page.at("#/compare/")
    page.sees("2 later calls were run in a fork; 2 ended differently", 'A "405.25" → B "1305.25"')
    fork = page.hash.split("/")[3].split("?")[0]
    assert [r["function"] for r in server.rpc("get_trace", session_id=fork)] == ["get_balance", "send_money"]
    assert balance(server, session_id) == "405.25"
    labels = server.rpc("get_session", session_id=fork)["labels"]
    assert labels == {"console": "without step 3 send_money"}  # without labels the fork isn't part of the run


def test_reset_to_a_step_needs_a_confirmation(page, server):
    session_id = bank(server, *THREE)
    page.open(f"#/sessions/{session_id}?version=1")
    page.click("Reset to here")
    assert version(server, session_id) == 3
    page.find("dialog", "Reset the session to version 1?")
    page.click("Reset", "dialog .danger")
    page.sees("reset to version 1")
    assert (version(server, session_id), balance(server, session_id)) == (4, "1815.25")


def test_delete_needs_a_confirmation(page, server):
    session_id = bank(server)
    page.open(f"#/sessions/{session_id}")
    button = page.find(".heading button", "Delete session…")
    ActionChains(page.driver).double_click(button).perform()
    page.find("dialog", "for good?")
    assert version(server, session_id) == 0
    page.press(Keys.ESCAPE)
    page.until(lambda: not page.run("return document.querySelector('dialog[open]')"), "the end of the dialog")
    page.click("Delete session…")
    page.until(lambda: page.run("return document.activeElement.innerText") == "Cancel", "the focus on Cancel")
    page.press(Keys.ENTER)  # on Cancel
    page.click("Delete session…")
    assert version(server, session_id) == 0
    page.click("Delete for good", "dialog button")
    page.at("#/sessions")
    page.sees("is deleted")
    page.click("Toolpacks", "nav a")  # The notice isn't shown on another page.
    page.until(lambda: "is deleted" not in page.text(), "the end of the notice")
    assert session_id not in {s["session_id"] for s in server.rpc("list_sessions")}


def test_records_of_other_clients_appear_by_themselves(page, server):
    session_id = bank(server)
    page.open(f"#/sessions/{session_id}")
    page.sees("There are no calls yet", "live")
    server.call(session_id, *pay("25.00")[:1], **pay("25.00")[1])
    page.sees("Step 0: send_money", "account/balance", "World now, at version 1")
    page.click("Start")  # The view stays at the step that the user selected.
    page.sees("World at version 0")
    server.call(session_id, "get_balance")
    page.sees("0 to 1 of 2 steps")
    assert "World at version 0" in page.text()


def test_sessions_of_other_clients_appear_by_themselves(page, server):
    page.open()
    page.sees("Sessions")
    session_id = bank(server, labels={"made-by": "a-script"})
    page.sees(session_id[:8], "made-by=a-script")


def test_back_reload_and_links_lead_to_the_same_step(page, server):
    session_id = bank(server, *THREE)
    page.open(f"#/sessions/{session_id}?version=1")
    page.sees("Step 1: send_money")
    page.click("move_to_savings", ".steps a")
    page.sees("Step 2: move_to_savings", "World at version 2")
    address = page.hash
    page.driver.back()
    page.sees("Step 1: send_money", "World at version 1")
    page.driver.forward()
    page.sees("Step 2: move_to_savings")
    page.driver.refresh()
    page.sees("Step 2: move_to_savings", "World at version 2")
    assert page.hash == address


def test_forks_are_listed_under_parents_and_labels_filter(page, server):
    parent = bank(server, pay("1.00"), labels={"family": "one"})
    (fork,) = server.rpc("fork_session", session_id=parent)
    (inner,) = server.rpc("fork_session", session_id=fork["session_id"])
    other = bank(server)
    page.open()
    page.click("family=one")
    page.at("#/sessions?label=family%3Done")
    page.until(lambda: other[:8] not in page.text(), "the filter")
    rows = [row.text for row in page.driver.find_elements("css selector", ".sessions tbody tr")]
    assert [row.split()[0][:8] for row in rows] == [
        parent[:8],
        fork["session_id"][:8],
        inner["session_id"][:8],
    ]
    insets = [c.value_of_css_property("padding-left") for c in page.driver.find_elements("css selector", "td.id")]
    assert sorted(insets, key=lambda inset: float(inset[:-2])) == insets
    assert len(set(insets)) == 3


def test_compare_two_sessions_of_the_list(page, server):
    one, two = (bank(server, labels={"pair": name}) for name in ("a", "b"))
    page.open()
    for session_id in (one, two):
        page.find(f"[aria-label='Compare {session_id[:8]}']").click()
    page.click("Compare these two")
    page.sees("Both worlds are equal", "pair=a", "pair=b")


def test_form_has_a_field_for_each_type_of_parameter(page, server):
    session_id = server.rpc("create_session", toolpacks=["pages"])["session_id"]
    page.open(f"#/sessions/{session_id}?run=plan")
    kinds = {
        name: (page.field(name).tag_name, page.field(name).get_attribute("type")) for name in ("kind", "day", "urgent")
    }
    assert kinds == {"kind": ("select", "select-one"), "day": ("input", "date"), "urgent": ("input", "checkbox")}
    page.write("kind", "note")
    page.write("size", "many")
    page.write("place", '{"street": "Elm", "number": ')
    page.click("Run", ".actions button.primary")
    errors = {e.get_attribute("id"): e.text for e in page.driver.find_elements("css selector", ".error") if e.text}
    assert set(errors) == {"field-day-error", "field-place-error", "field-size-error"}
    assert errors["field-place-error"].startswith("This isn't JSON")
    assert errors["field-size-error"] == "Write a whole number, such as 12."
    assert server.rpc("get_trace", session_id=session_id) == []
    page.find("button", "Dismiss").click()
    page.write("day", "2026-03-02")
    page.write("size", "12345678901234567890")
    page.write("place", '{"street": "Elm", "number": "x"}')
    page.write("words", '["a"]')
    page.click("Run", ".actions button.primary")
    page.sees("The world has not changed")
    assert "integer" in page.find("#field-place-error").text  # The server's error is shown at its field.
    page.write("place", '{"street": "Elm", "number": 3}')
    page.field("urgent").click()
    page.click("Run", ".actions button.primary")
    page.click("See what it changed")
    page.sees("12345678901234567890")  # more than a JavaScript number can hold
    arguments = server.rpc("get_trace", session_id=session_id)[-1]["kwargs"]
    assert arguments == {
        "kind": "note",
        "day": "2026-03-02",
        "size": 12345678901234567890,
        "place": {"street": "Elm", "number": 3},
        "urgent": True,
        "words": ["a"],
    }


def test_content_of_a_session_is_always_shown_as_text(page, server):
    labels = {MARKUP[:40]: MARKUP}
    session = server.rpc(
        "create_session", toolpacks=["pages"], labels=labels, options={"pages": {"notes": {"a": MARKUP}}}
    )
    session_id = session["session_id"]
    for name, content in ((MARKUP, {MARKUP: [MARKUP]}), ("bidi", "a\u202eb\u0000c"), ("a", MARKUP * 20 + "\n")):
        server.call(session_id, "write", name=name, content=content)
    server.call(session_id, "give_up", text=MARKUP)
    server.call(session_id, MARKUP[:40])
    (fork,) = server.rpc("fork_session", session_id=session_id, version=1)
    addresses = [
        "#/sessions",
        "#/new",
        "#/toolpacks",
        "#/toolpacks/pages",
        f"#/compare/{session_id}/{fork['session_id']}",
    ]
    addresses += [f"#/sessions/{session_id}?record={n}" for n in range(5)]
    addresses += [f"#/sessions/{session_id}?run={name}" for name in ("write", "plan")]
    addresses += [f"#/sessions/{MARKUP}", f"#/{MARKUP}", f"#/toolpacks/{MARKUP}", f"#/sessions?label={MARKUP}"]
    for address in addresses:
        page.open(address)
        page.until(
            lambda: page.run("return !document.querySelector('[aria-busy]') && document.body.innerText.length > 60"),
            address,
        )
        page.run("for (const closed of document.querySelectorAll('details')) closed.open = true")
        page.run("for (const item of document.querySelectorAll('[aria-expanded=false] > .row')) item.click()")
        assert page.run("return document.querySelectorAll('main :is(img, script, svg, iframe, object)').length") == 0, (
            address
        )
        assert page.run("return [window.ran, window.violations, window.problems]") == [0, [], []], address
    page.open(f"#/sessions/{session_id}?record=0")
    page.sees(MARKUP)
    page.open(f"#/sessions/{session_id}?record=1")
    page.sees("a\\u202eb\\u0000c")  # A character that changes the direction of text is made visible.


def test_create_a_session_of_a_task_and_evaluate_it(page, server):
    page.open("#/toolpacks/chores")
    page.sees("tasks", "Do the dishes, once.")
    page.find("tr", "chores/dishes").find_element("link text", "New session").click()
    page.sees("For the task chores/dishes")
    page.click("Create session")
    session_id = page.at("#/sessions/").split("/")[2]
    page.sees("task chores/dishes", "What the agent is asked to do", "Do the dishes, once.")
    page.find(".facts .tag.bad", "failed")  # without a click
    server.call(session_id, "do", chore="dishes")
    page.find(".facts .tag.good", "passed")
    server.rpc("add_message", session_id=session_id, role="assistant", content=MARKUP)
    page.sees("message of the assistant", MARKUP[:20])
    server.rpc("add_message", session_id=session_id, role="assistant", content="")
    page.sees("Step 2: message of the assistant", "An empty text.")
    page.click("Evaluate", ".tabs a")
    page.sees("passed reward 1", "chores/dishes at version 1", "the dishes are done", "Outcome", "Check", "Detail")
    page.click("Start")
    page.click("Evaluate", ".tabs a")
    page.sees("failed reward 0", "chores/dishes at version 0")


def test_search_in_the_world_and_copy(page, server):
    session_id = bank(server, *THREE)
    page.open(f"#/sessions/{session_id}?version=3")
    page.find("[aria-label='Search in the world']").send_keys("refund", Keys.ENTER)
    page.sees("1 of 1")
    assert "Refund" in page.find(".tree [aria-selected]").text
    for label, copied in {
        "Copy pointer": "/bank/account/transactions/15/subject",
        "Copy value": "Refund",
        "Copy…": "Refund",  # opens the menu
        "Copy id": session_id,
        "Copy agent's address": server.url + server.rpc("get_session", session_id=session_id)["agent_path"],
    }.items():
        page.click(label)
        page.until(lambda copied=copied: page.run("return window.copied") == copied, f"{label}: {copied}")
    page.click("Copy as curl")
    line = page.until(lambda: (text := page.run("return window.copied")).startswith("curl") and text, "the line")
    assert json.loads(line.partition("-d '")[2][:-1])["params"] == {
        "session_id": session_id,
        "function": "send_money",
        "kwargs": pay("900.00", "Refund")[1],
    }


def test_use_the_console_with_the_keyboard_alone(page, server):
    page.open()
    page.sees("New session")
    page.tab_to("Skip to the content")
    page.press(Keys.ENTER)
    assert page.run("return document.activeElement.id") == "main"
    page.tab_to("New session")
    page.press(Keys.ENTER)
    page.sees("Toolpacks", "Options of bank")
    page.tab_to("Create session")
    page.press(Keys.ENTER)
    page.at("#/sessions/")
    page.sees("There are no calls yet")
    page.tab_to("Run a function")
    page.press(Keys.ENTER)
    page.tab_to("function")
    page.press("add")
    page.at(page.hash.split("?")[0] + "?run=")
    page.sees("The number to add")
    page.tab_to("amount")
    page.press("5")
    page.tab_to("Run")
    page.press(Keys.ENTER)
    page.tab_to("See what it changed")
    page.press(Keys.ENTER)
    page.sees("Step 0: add")
    announced = "return document.getElementById('announced').textContent"
    page.until(lambda: "Step 0: add" in page.run(announced), "the announcement")
    while page.run("return document.activeElement.getAttribute('role')") != "treeitem":
        page.press(Keys.TAB)
    expanded = "return document.activeElement.getAttribute('aria-expanded')"
    page.press(Keys.ARROW_DOWN, Keys.END, Keys.HOME, Keys.ARROW_LEFT)
    assert page.run(expanded) == "false"
    page.press(Keys.ARROW_RIGHT)
    assert page.run(expanded) == "true"
    page.sees("Copy pointer")
    session_id = page.hash.split("/")[2].split("?")[0]
    assert version(server, session_id) == 1


def test_arrow_keys_move_in_a_list_that_is_one_tab_stop(page, server):
    session_id = bank(server, *THREE, *[("get_balance", {})] * 120)
    page.open(f"#/sessions/{session_id}?version=1")
    page.sees("Step 1: send_money")
    stops = "return [...document.querySelectorAll('.steps a')].filter((each) => each.tabIndex === 0).length"
    assert page.run(stops) == 1
    page.tab_to("Last")
    page.press(*[Keys.TAB] * 4)  # the search, its two buttons, and the list's only tab stop
    assert "send_money" in page.run("return document.activeElement.innerText")
    page.press(Keys.ARROW_DOWN)
    page.sees("Step 2: move_to_savings")
    page.press(Keys.END)
    page.sees("Step 99: get_balance")
    page.press(Keys.ARROW_DOWN)  # on the next page
    page.sees("Step 100: get_balance")
    assert page.run("return document.activeElement.querySelector('.at')?.innerText") == "100"
    page.press(Keys.ARROW_UP, Keys.ARROW_UP)
    page.sees("Step 98: get_balance")
    page.press(Keys.TAB)
    assert page.run("return document.activeElement.closest('.steps')") is None
    one, two = (bank(server, labels={"arrows": "yes", "more": name}) for name in "ab")
    page.open("#/sessions?label=arrows%3Dyes")
    page.find(".sessions", one[:8])
    page.tab_to("Created ↓" if "Created ↓" in page.text() else "Created")
    page.press(Keys.TAB)
    label = "return document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText"
    assert page.run(label) == f"Compare {two[:8]}"
    page.press(Keys.ARROW_DOWN, Keys.SPACE, Keys.ARROW_RIGHT)
    assert page.run(label) == one[:8]
    assert page.run("return document.querySelectorAll('.sessions input:checked').length") == 1
    page.press(Keys.TAB)
    assert page.run("return document.activeElement.closest('.sessions')") is None


def test_list_keeps_its_scroll_position(page, server):
    for _ in range(3):
        server.rpc("fork_session", session_id=bank(server), count=30)
    page.open("#/sessions")
    page.find(".sessions tbody tr")
    page.run("scrollTo(0, 1500)")
    page.until(lambda: page.run("return scrollY") == 1500, "the scrolling")
    row = "return [...document.querySelectorAll('.sessions tr')].find((row) => row.getBoundingClientRect().top > 200)"
    page.run(f"{row.replace('return', 'const row =')}; row.querySelector('.id a').click()")
    page.sees("There are no calls yet")
    assert page.run("return scrollY") == 0
    page.driver.back()
    page.until(lambda: page.run("return scrollY") == 1500, "the place where it was")


def test_token_is_asked_for_and_kept_in_the_tab(page, tmp_path):
    tokens = {"TOOLPACK_TOKENS": "ann:ann-secret"}
    with server_process.served(tmp_path, "--store", "memory:", **tokens) as guarded:
        page.open(url=guarded.url)
        page.sees("This server requires a token")
        page.write("token", "wrong-secret")
        page.press(Keys.ENTER)
        page.sees("The server refused this token")
        assert page.run("return sessionStorage.length") == 0
        page.write("token", "ann-secret")
        page.press(Keys.ENTER)
        page.sees("There are no sessions yet")
        assert page.run("return [sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
        page.driver.refresh()
        page.sees("There are no sessions yet", "Forget token")
        first = page.driver.current_window_handle
        page.driver.switch_to.new_window("tab")
        page.driver.get(f"{guarded.url}/console/")
        page.sees("This server requires a token")
        page.driver.close()
        page.driver.switch_to.window(first)
        page.click("Forget token")
        page.sees("This server requires a token")
        page.click("Cancel")
        page.sees("Nothing can be shown without a token", "Try again")


def test_errors_say_what_to_do(page, server):
    page.open(f"#/sessions/{'0' * 48}")
    page.sees("No session has this id", "Try again")
    page.open("#/sessions?label=without")
    page.sees("write name=value, separated by commas")
    page.open("#/nowhere")
    page.sees("There is no such page", "Go to the sessions")
    session_id = bank(server, *[pay("1.00")] * 2)
    page.open(f"#/sessions/{session_id}?version=9")
    page.sees("Step 1: send_money")  # the last step


def test_malformed_address_leads_to_the_sessions(page):
    page.open("#/%")
    page.sees("There is no such page", "Go to the sessions")


def test_outage_messages_disappear_after_the_outage(page, server):
    session_id = bank(server, pay("1.00"))
    page.open(f"#/sessions/{session_id}")
    page.find(".live", "live")
    page.run("window.there = fetch; window.fetch = () => Promise.reject(new TypeError('away'))")
    page.sees("not live: The server can't be reached")
    assert page.driver.find_elements("css selector", ".live") == []  # no green dot
    page.click("Fork after")
    page.find("#status .bad", "The server can't be reached")
    page.click("Toolpacks", "nav a")
    page.find(".problem", "The server can't be reached")
    page.run("window.fetch = window.there")
    page.sees("13 functions")
    assert page.driver.find_elements("css selector", ".problem, #status .bad") == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("new Response('<html>', {status: 503})", "answered HTTP 503"),
        ('new Response(\'{"error": {"message": "Too many."}}\', {status: 429})', "Too many."),
        ("new Response('[{\"jsonrpc\"', {status: 200})", "answered HTTP 200"),
        ("Response.json({id: 0, error: {code: -32006, message: 'It stops.'}})", "It stops."),
    ],
    ids=["restart", "many", "cut", "stopping"],
)
def test_list_recovers_by_itself_after_a_restart(page, server, answer, message):
    session_id = bank(server)
    page.open("#/sessions")
    page.find(".sessions", session_id[:8])
    page.run(f"window.there = fetch; window.fetch = async () => {answer}")
    page.find(".problem", message)
    page.run("window.fetch = window.there")
    page.find(".sessions", session_id[:8])
    assert page.driver.find_elements("css selector", ".problem, #status .bad") == []


def test_session_is_one_line_with_full_names_in_tooltips(page, server):
    label = {"experiment": "a-" + "very-" * 30 + "long-name"}
    toolpacks = ["bank", "chores", "ledger"]
    session_id = server.rpc("create_session", toolpacks=toolpacks, labels=label)["session_id"]
    server.call(session_id, "get_balance")
    server.call(session_id, "no_such_function")
    page.open("#/sessions")
    page.find(".sessions tbody tr", session_id[:8])
    script = (
        "const row = [...document.querySelectorAll('.sessions tbody tr')].find((row) => row.innerText.includes("
        "arguments[0])); return [row.innerText, ...[...row.cells].map((cell) => cell.title)]"
    )
    text, *titles = page.run(script, session_id[:8])  # in one call, because the list may be drawn again
    assert {f"experiment={label['experiment']}", ", ".join(toolpacks)} <= set(titles)
    assert "2 (1 error)" in text
    assert "no_such_function" in text
    heights = "return [...document.querySelectorAll('.sessions tbody tr')].map((row) => row.offsetHeight < 40)"
    assert set(page.run(heights)) == {True}


def test_sessions_are_searched_sorted_and_distinguished(page, server):
    mark = {"list": "sorted"}
    sessions = [server.rpc("create_session", task="chores/dishes", labels=mark)["session_id"] for _ in range(3)]
    server.call(sessions[1], "do", chore="dishes")
    for session_id in sessions:
        server.rpc("submit_answer", session_id=session_id, answer="Never again.")
    server.rpc("evaluate_session", session_id=sessions[1], record=True)
    forks = server.rpc("fork_session", session_id=sessions[0], count=2)
    page.open("#/sessions?label=list%3Dsorted&sort=-calls")
    page.sees("5 sessions: 1 passed, 2 failed, mean reward 0.33, 1 call, 0 errors")
    assert sessions[1][:8] in page.find(".sessions tbody tr").text
    for number, fork in enumerate(sorted(forks, key=lambda each: (each["created_at"], each["session_id"])), 1):
        text = page.find(".sessions tbody tr", fork["session_id"][:8]).text
        assert f"{sessions[0][:8]} v0, {number} of 2" in text
    page.write("text", "NEVER again")
    page.click("Filter")
    page.sees("3 sessions: ")
    page.write("text", "nobody said this")
    page.click("Filter")
    page.sees("No session has the text “nobody said this”.")


def test_unchanged_list_is_not_sent_again(page, server):
    session_id = bank(server, labels={"quiet": "list"})
    page.open("#/toolpacks")
    page.sees("ledger")  # Now the page has finished loading.
    page.run(
        "window.sizes = []; const there = fetch;"
        "window.fetch = async (url, options) => { const answer = await there(url, options);"
        "  const size = (await answer.clone().text()).length;"
        "  if (options.body.includes('summarize_sessions')) window.sizes.push(size); return answer; }"
    )
    page.run("location.hash = '#/sessions?label=quiet%3Dlist'")
    page.find(".sessions", session_id[:8])
    page.until(lambda: page.run("return window.sizes.length") > 2, "another look")
    first, *others = page.run("return window.sizes")
    assert max(others) < 200 < first
    server.call(session_id, "get_balance")
    page.until(lambda: "get_balance" in page.find(".sessions").text, "the call")


def test_record_verdicts_from_the_page_of_a_run(page, server):
    mark = {"run": "to-keep"}
    sessions = [server.rpc("create_session", task="chores/dishes", labels=mark)["session_id"] for _ in range(12)]
    server.rpc("evaluate_session", session_id=sessions[0], record=True)
    records = [len(server.rpc("get_trace", session_id=session_id)) for session_id in sessions]
    assert records == [1] + [0] * 11
    page.open("#/runs?by=run&run=to-keep")
    page.sees("12 rollouts", "0/12")
    assert server.rpc("get_trace", session_id=sessions[1]) == []  # Reading the page records nothing.
    page.click("Record verdicts")
    page.sees("Recorded: 11 verdicts of 11.")
    page.click("Record verdicts")
    page.sees("All verdicts were recorded before.")
    assert [len(server.rpc("get_trace", session_id=session_id)) for session_id in sessions] == [1] * 12
    page.open("#/runs?by=run&run=to-keep")
    page.sees("12 rollouts", "0/12")  # Now the page has finished loading.
    page.run(
        "window.asked = []; const there = fetch;"
        "window.fetch = (url, options) => { window.asked.push(options.body); return there(url, options); }"
    )
    page.click("Read again")
    page.sees("12 rollouts", "0/12")
    page.until(lambda: page.run("return window.asked.length"), "the requests")
    assert "evaluate_session" not in "".join(page.run("return window.asked"))


def test_new_session_form_takes_ttl_and_world_but_no_unusable_seed(page, server):
    world = server.rpc("get_environment", session_id=bank(server))
    world["bank"]["account"]["balance"] = "7.00"
    page.open("#/new")
    page.click("Time to live, environment")
    page.sees("A seed or a clock needs a server with TOOLPACK_ISOLATION=process.")  # which isn't set here
    for name, text in {"ttl_seconds": "600", "environment": json.dumps(world)}.items():
        page.find(f"#field-session-{name}").send_keys(text)
    for name in ("chores", "ledger", "pages", "papers", "stall"):
        page.find(f"input[value={name}]").click()
    ids = page.run("return [...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(set(ids)) == len(ids)
    page.click("Create session")
    session_id = page.at("#/sessions/").split("/")[2]
    assert balance(server, session_id) == "7.00"
    session = server.rpc("get_session", session_id=session_id)
    lives = datetime.fromisoformat(session["expires_at"]) - datetime.fromisoformat(session["created_at"])
    assert lives < timedelta(hours=1)


def test_title_names_the_view(page):
    page.open("#/toolpacks/workspace-of-mine")
    page.until(lambda: page.driver.title == "Toolpacks workspace-of-mine · Toolpack Server", "the title")


def test_trace_with_ten_thousand_records_is_usable(page, server):
    session_id = bank(server)
    call = {"jsonrpc": "2.0", "method": "run_function", "params": {"session_id": session_id, "function": "get_iban"}}
    for _ in range(10):
        assert server.http.post("/rpc", json=[call] * 1000).status_code == 204
    server.call(session_id, *pay("25.00")[:1], **pay("25.00")[1])
    page.open(f"#/sessions/{session_id}")
    page.sees("Step 10000: send_money", "of 10,001 steps", "account/balance")
    assert page.run("return document.querySelectorAll('.steps li').length") <= 101
    page.click("Earlier")
    page.sees("9801 to 9900 of 10,001 steps")
    page.click("First")
    page.sees("0 to 99 of 10,001 steps", "before the first step")
    page.click("Later")
    page.sees("100 to 199 of 10,001 steps")
    page.open(f"#/sessions/{session_id}?record=5000")
    page.sees("Step 5000: get_iban")
    field = page.find("[aria-label='Search in the steps']")
    field.send_keys("books", Keys.ENTER)
    page.sees("Step 10000: send_money", "Step 10000.")
    page.press("x", Keys.ENTER)
    page.sees("Nothing found.", "Step 10000: send_money")
    field.clear()
    field.send_keys("get_iban")
    page.click("Previous", ".timeline .search button")
    page.sees("Step 9999: get_iban")
    page.click("Next", ".timeline .search button")
    page.sees("Step 0: get_iban", "Step 0.")
    page.click("Next", ".timeline .search button")
    page.sees("Step 1: get_iban", "Step 1.")


def test_find_the_step_that_set_a_value(page, server):
    notes = {"code": "one", "old": "as it was"}
    session_id = server.rpc("create_session", toolpacks=["pages"], options={"pages": {"notes": notes}})["session_id"]

    def write(name, *contents):
        params = [{"name": name, "content": content} for content in contents]
        call = {"jsonrpc": "2.0", "method": "run_function"}
        calls = [call | {"params": {"session_id": session_id, "function": "write", "kwargs": each}} for each in params]
        assert server.http.post("/rpc", json=calls).status_code == 204

    def ask_of(name):
        page.click(f"{name}:", ".tree .row")
        page.click("Which step?")

    write("other", *range(30))
    write("code", "two", "one", "two")  # The last write of "two" counts.
    write("other", *range(30, 60))
    page.open(f"#/sessions/{session_id}")
    page.click("Compare with start")
    ask_of("code")
    page.sees("Step 32: write")
    page.open(f"#/sessions/{session_id}")
    page.sees("Step 62: write")
    ask_of("old")
    page.sees("Unchanged since the start.")
    write("other", *range(300))
    page.open(f"#/sessions/{session_id}")
    page.sees("Step 362: write")
    ask_of("code")
    page.sees("The version before isn't kept.")


def test_changed_line_of_a_long_text_and_its_words_are_marked(page, server):
    lines = [f"{number}: def function_{number}(self): return {number * 7}" for number in range(1, 401)]
    session_id = server.rpc("create_session", toolpacks=["pages"])["session_id"]
    server.call(session_id, "write", name="code", content="\n".join(lines))
    lines[299] = lines[299].replace("return 2100", "return 2101")
    server.call(session_id, "write", name="code", content="\n".join(lines) + "\n")
    page.open(f"#/sessions/{session_id}?version=2")
    for css in (".changes", ".tree"):
        changed = page.find(f"{css} .lines")
        assert [row.text for row in changed.find_elements("css selector", ".removed, .added")] == [
            "300\n-\n300: def function_300(self): return 2100",
            "300\n+\n300: def function_300(self): return 2101",
            "400\n-\n400: def function_400(self): return 2800 (no line break at the end)",
            "400\n+\n400: def function_400(self): return 2800",
        ], css
        words = [mark.text for mark in changed.find_elements("css selector", "mark")]
        assert words[:2] == ["2100", "2101"]
        assert "297 equal lines" in changed.text
    page.sees("-2 +2 of 400 lines")
    page.open(f"#/compare/{session_id}/{session_id}?a=1&b=2")
    assert "return 2101" in page.find(".tree .lines .added").text
    one = "word " * 1000
    server.call(session_id, "write", name="line", content=one + "yes" + " word" * 1000)
    server.call(session_id, "write", name="line", content=one + "no" + " word" * 1000)
    page.open(f"#/sessions/{session_id}?version=4")
    element = page.find(".changes .lines")
    assert [mark.text for mark in element.find_elements("css selector", "mark")] == ["yes", "no"]
    assert "4,940 characters" in element.text


def test_similar_numbers_and_texts_are_shown_and_copied_exactly(page, server):
    session_id = server.rpc("create_session", toolpacks=["pages"])["session_id"]

    def write(content):
        params = {"session_id": session_id, "function": "write", "kwargs": {"name": "note", "content": "HERE"}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})
        server.http.post("/rpc", content=body.replace('"HERE"', content), headers={"Content-Type": "application/json"})

    for content in ("1", "1.0", "[1.50, 1e2]", '"a\\u202eb"', '"a\\\\u202eb"'):
        write(content)
    for version, old, now in (
        (2, "1", "1.0"),
        (4, "[1.5, 100.0]", '"a\\u202eb"'),
        (5, '"a\\u202eb"', '"a\\\\\\u202eb"'),
    ):
        page.open(f"#/sessions/{session_id}?version={version}")
        row = page.find(".tree .changed > .row")
        assert (row.find_element("css selector", "del").text, row.find_element("css selector", "ins").text) == (
            old,
            now,
        )
    page.open(f"#/sessions/{session_id}?version=2")
    page.click("Copy as curl")
    copied = page.until(lambda: page.run("return window.copied"), "the copy")
    assert '"content":1.0}' in copied
    page.click("Edit and try")
    page.until(lambda: page.field("content").get_attribute("value") == "1.0", "the value")


def test_long_word_in_a_verdict_does_not_widen_the_page(page, server):
    session_id = server.rpc("create_session", task="chores/dishes")["session_id"]
    server.call(session_id, "do", chore="x" * 900)
    for width in (1280, 400):
        page.resize(width)
        page.open(f"#/sessions/{session_id}?evaluate=")
        page.find(".checks", "nothing else is")
        assert page.run("return document.documentElement.scrollWidth") <= width
    page.resize(1280)


def test_number_of_changes_of_a_step_is_shown_for_any_count(page, server):
    session_id = server.rpc("create_session", toolpacks=["pages"])["session_id"]
    server.call(session_id, "write", name="many", content={})
    server.call(session_id, "write", name="many", content={f"n{number}": number for number in range(1100)})
    page.open(f"#/sessions/{session_id}")
    page.sees("and 1,097 more")


def test_escape_closes_a_menu(page, server):
    page.open(f"#/sessions/{bank(server)}")
    page.click("Copy…", "summary")
    page.find(".menu button", "Copy id")
    page.press(Keys.TAB, Keys.ESCAPE)
    page.until(lambda: not page.run("return document.querySelector('.menu').open"), "the end of the menu")
    assert page.run("return document.activeElement.innerText") == "Copy…"


def test_large_table_has_pages_and_marks_changed_rows(page, server):
    session_id = server.rpc("create_session", toolpacks=["stall"], options={"stall": {"rows": 1150}})["session_id"]
    for sql in ("DELETE FROM filler WHERE id = 7", "UPDATE filler SET text = 'it changed' WHERE id = 1101"):
        assert server.call(session_id, "run_sql", sql=sql)["error"] is None
    page.open(f"#/sessions/{session_id}?version=1")
    page.sees("What this step changed", "/stall/db/filler/7", "/stall/db/filler/$rows", "1150 → 1149")
    page.open(f"#/sessions/{session_id}?version=2")
    page.sees("/stall/db/filler/1101/text", "it changed")
    assert "it changed" in page.find(".tree li.inside", "1101").text
    for row_count in (100, 200):
        page.click("Show 100 rows more")
        page.until(lambda row_count=row_count: len(rows(page)) == 2 + row_count, f"{row_count} rows")
    assert rows(page)[2:4] == ["1: ", "2: "]


def test_files_are_shown_in_folders_and_can_be_downloaded(page, server, tmp_path):
    files = {
        "src/lib/deep/a b.py": "x = 1\n" * 300,
        "src/big.txt": "b" * 1_100_000,
        "src/link": {"$link": "lib"},
        "caf//e9.bin": {"$base64": "/wA="},
        "void": {"$dir": True},
    }
    world = {"papers": {"files": files, "notes": []}}
    session_id = server.rpc("create_session", toolpacks=["papers"], environment=world)["session_id"]
    server.call(session_id, "write", path="src/lib/deep/a b.py", text="x = 1\n" * 299 + "x = 2\n")
    page.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})

    def downloaded(name):
        path = tmp_path / name
        return page.until(lambda: path.exists() and path.read_bytes(), f"the download of {name}")

    page.open(f"#/sessions/{session_id}?version=1")
    page.find(".changes code", "/papers/files/src/lib/deep/a b.py")
    page.find(".did", "files/src/lib/deep/a b.py")
    page.find(".tree .changed > .row", "a b.py: 1.8 KiB")
    names = page.run(
        "return [...document.querySelectorAll('.tree .row')].map((row) => row.innerText.replace(/\\s+/g, ' ').trim())"
    )
    for expected in ("src/1 change", "deep/1 change", "link: → lib", "caf\\xe9.bin: 2 B", "void: an empty folder"):
        assert expected in names, names
    for row, name, content in (
        ("big.txt: 1.0 MiB", "big.txt", b"b" * 1_100_000),  # The world has only the size of this file.
        ("caf\\xe9.bin: 2 B", "caf_xe9.bin", b"\xff\0"),
    ):
        page.click(row)
        page.click("Download", ".bar button")
        assert downloaded(name) == content
    page.click("Download JSON")
    (record,) = server.rpc("get_trace", session_id=session_id)
    assert json.loads(downloaded(f"{session_id[:8]}-step-0.json")) == record
    for label, name in (("World at version 1", "world-1.json"), ("Trace", "trace.json")):
        page.click("Download…", "summary")
        page.click(label, ".menu button")
        content = json.loads(downloaded(f"{session_id[:8]}-{name}"))
        assert content == ([record] if label == "Trace" else server.rpc("get_environment", session_id=session_id))
        page.press(Keys.ESCAPE)
    page.click("Download…", "summary")
    page.click("Bundle", ".menu button")
    bundle = base64.b64encode(downloaded(f"{session_id[:8]}.bundle")).decode()
    assert server.rpc("import_bundle", bundle=bundle)["version"] == 1


def test_compare_shows_rows_that_differ_in_large_tables(page, server):
    session_id = server.rpc("create_session", toolpacks=["stall"], options={"stall": {"rows": 1150}})["session_id"]
    (fork,) = server.rpc("fork_session", session_id=session_id)
    server.call(fork["session_id"], "run_sql", sql="UPDATE filler SET text = 'it changed' WHERE id = 1101")
    page.open(f"#/compare/{session_id}/{fork['session_id']}")
    page.sees("1 difference")
    assert "it changed" in page.find(".tree li.inside", "1101").text
    page.click("Show 100 rows more")
    page.until(lambda: len(rows(page)) == 102, "the rows")


def rows(page):
    """Return the keys in the open table: the changed row, the number of rows, and the rows shown."""
    return page.run(
        "const rows = document.querySelector('.tree li[role=none]').parentElement.children;"
        "return [...rows].map((row) => row.querySelector('.key')?.textContent).filter(Boolean)"
    )


def test_world_of_five_megabytes_is_usable(page, server):
    lines = [
        {"id": n, "day": "2026-01-01", "iban": IBAN, "amount": "-1.00", "subject": f"Line {n} " + "x" * 80}
        for n in range(28_000)
    ]
    world = server.rpc("get_environment", session_id=bank(server))
    world["bank"]["account"]["transactions"] = lines
    session_id = bank(server, environment=world)
    assert (
        len(
            server.http.post(
                "/rpc",
                json={"jsonrpc": "2.0", "id": 1, "method": "get_environment", "params": {"session_id": session_id}},
            ).content
        )
        > 5_000_000
    )
    server.call(session_id, *pay("25.00")[:1], **pay("25.00")[1])
    page.open(f"#/sessions/{session_id}")
    page.sees("World now, at version 1", "28,001 items")
    page.sees("/bank/account/transactions/28000")
    assert page.run("return document.querySelectorAll('.tree li').length") < 600
    page.find("[aria-label='Search in the world']").send_keys("line 27123 x", Keys.ENTER)
    page.sees("1 of 1", "/bank/account/transactions/27123/subject")


def test_list_of_ten_thousand_sessions_is_usable(page, server):
    session_id = bank(server, labels={"many": "yes"})
    forks = [fork for _ in range(10) for fork in server.rpc("fork_session", session_id=session_id, count=1000)]
    page.open("#/sessions?label=many%3Dyes")
    page.sees("100 sessions on this page of 10,001: ")
    first = page.find(".sessions tbody tr").text
    page.click("Older")
    page.at("#/sessions?label=many%3Dyes&after=")
    page.until(lambda: page.find(".sessions tbody tr").text != first, "the next page")
    page.click("Newest")
    page.until(lambda: page.find(".sessions tbody tr").text == first, "the first page")
    called = forks[5000]["session_id"]  # not the first of any page, by age or by id
    server.call(called, "get_balance")
    page.click("Calls", "th a")
    page.at("#/sessions?label=many%3Dyes&sort=-calls")
    page.until(lambda: called[:8] in page.find(".sessions tbody tr").text, "the session with the most calls")
    page.click("Next", ".pager a")
    page.at("#/sessions?label=many%3Dyes&sort=-calls&after=")
    page.sees("100 sessions on this page of 10,001: 0 calls")
    assert server.rpc("close_session", labels={"many": "yes"}) == 10_001


def test_perturbed_step_shows_the_result_and_what_the_agent_saw(page, server):
    page.open("#/new?task=bank/save-300")
    page.write("variant", "lost")
    down = {"functions": "get_balance", "calls": "2", "error": "ConnectionError: down"}
    page.write("rules", json.dumps([down, {"functions": "move_from_savings", "phantom": True}]))
    page.click("Create session")
    session_id = page.at("#/sessions/").split("/")[2]
    page.sees("perturbations: lost")
    path = server.rpc("get_session", session_id=session_id)["agent_path"]
    calls = [("move_to_savings", {"amount": "300.00"}), ("get_balance", {}), ("get_balance", {})]
    for function, kwargs in (*calls, ("move_from_savings", {"amount": "9.00"})):
        params = {"function": function, "kwargs": kwargs}
        server.http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "run_function", "params": params})
    page.open(f"#/sessions/{session_id}?version=1&record=0")
    page.sees("What happened", "To savings", "What the agent got", "TimeoutError: the service did not answer in time")
    page.open(f"#/sessions/{session_id}?version=1&record=2")
    page.sees("Not run", "ConnectionError: down", "rule 0")
    page.open(f"#/sessions/{session_id}?version=1&record=3")
    page.sees("Not committed", "The function ran on a copy.", "From savings")
    page.open(f"#/sessions/{session_id}?version=1&record=2")
    # The first line of each step isn't wrapped.
    for row in page.driver.find_elements("css selector", ".steps a"):
        assert len({each.location["y"] // 12 for each in row.find_elements("css selector", ".at, .ms, .v")}) == 1
    page.resize(400)
    assert page.run("return document.documentElement.scrollWidth") <= 400
    page.click("Without the rules")
    page.until(lambda: page.hash.split("?")[0] not in {"", f"#/sessions/{session_id}"}, "the fork")
    fork = server.rpc("get_session", session_id=page.hash.split("?")[0].split("/")[2])
    assert (fork.get("perturbations"), fork.get("parent")["session_id"], fork["labels"]) == (
        None,
        session_id,
        {"console": "fork"},
    )


def test_dropped_audit_report_shows_findings_and_repeats_attempt(page, server):
    drop = """
        const [name, text] = arguments, data = new DataTransfer();
        data.items.add(new File([text], name));
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));"""
    attempt = {
        "calls": [{"function": "get_balance", "kwargs": {}}, {"function": "no_such", "kwargs": {}}],
        "answer": "7",
    }
    weak = {"kind": "answer-dump", "fault": False, "text": MARKUP, "calls": [], "answer": ""}
    fault = {"kind": "no-work", "fault": True, "text": "passes: 2 calls at random", **attempt}
    tasks = {
        "bank/save-300": {"findings": [fault, weak]},
        "ledger/x": {"findings": [fault]},
        "bank/b": {"findings": []},
    }
    page.open("#/toolpacks/bank")
    page.sees("Audit", "save-300")
    page.run(drop, "other.json", '{"format": "audit-2", "tasks": {}}')
    page.sees("other.json isn't an audit report.")
    page.run(drop, "ledgers.json", json.dumps({"format": "audit-1", "tasks": {"ledger/x": {"findings": []}}}))
    page.sees("ledgers.json has no task of bank.")
    page.run(drop, "report.json", json.dumps({"format": "audit-1", "tasks": tasks}))
    page.sees("2 tasks in report.json, 2 findings.", "fault no-work", "passes: 2 calls at random", MARKUP)
    page.resize(400)
    assert page.run("return document.documentElement.scrollWidth") <= 400
    page.click("Repeat")
    session_id = page.at("#/sessions/").split("/")[2]
    page.sees("The attempt ran in this new session: 2 calls.")
    records = server.rpc("get_trace", session_id=session_id)
    assert [each["kind"] for each in records] == ["call", "call", "answer"]
    assert records[0]["by"] == "agent"  # with the permissions of the agent
    assert (records[0]["function"], records[2]["answer"]) == ("get_balance", "7")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_view_fits_into_400_pixels(page, server, dark):
    session_id = bank(server, *THREE, labels={"experiment": "a-rather-long-name-of-an-experiment"})
    page.resize(400, dark=dark)
    paths = ["", f"/{session_id}", f"/{session_id}?run=create_standing_order"]
    for path in [f"#/sessions{path}" for path in paths] + [
        "#/new",
        f"#/compare/{session_id}/{session_id}?a=0",
        "#/toolpacks/bank",
    ]:
        page.open(path)
        page.until(
            lambda: page.run("return !document.querySelector('[aria-busy]') && document.querySelector('h1, h2')"), path
        )
        assert page.run("return document.documentElement.scrollWidth") <= 400, path
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) is dark


def test_session_shows_which_participant_did_what(page, server):
    page.open("#/new")
    page.until(lambda: page.find("input[value=ledger]"), "the form")
    page.click("Add a participant")
    page.write("functions", "get_balanc")
    page.click("Create session")
    page.sees("This is required.")
    page.write("name", "user")
    page.click("Create session")
    page.sees("Participant 'user': the session has no function 'get_balanc'. Did you mean")
    page.write("functions", "get_balance")
    page.click("Create session")
    session_id = page.at("#/sessions/").split("/")[2]
    paths = server.rpc("get_session", session_id=session_id).get("participants")
    assert [*paths] == ["agent", "user"]
    for name, method, params in (
        ("user", "run_function", {"function": "get_balance"}),
        ("user", "say", {"text": "So little?", "to": "agent"}),
        ("agent", "say", {"text": "I'm afraid so."}),
    ):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        assert "result" in server.http.post(paths[name]["agent_path"], json=body).json()
    page.sees('user to agent "So little?"', 'agent "I\'m afraid so."')
    page.open(f"#/sessions/{session_id}?record=1")
    page.sees("by user to agent")
    page.until(lambda: page.find("details.menu summary").click() or True, "a click")
    page.sees("Copy user's address", "Copy user's MCP address")


def test_links_lead_from_steps_to_forks_and_back(page, server):
    parent = bank(server, *THREE)
    (fork,) = server.rpc("fork_session", session_id=parent, version=2)
    fork = fork["session_id"]
    server.call(fork, "get_balance")
    page.open(f"#/sessions/{parent}?version=2")
    assert "1 fork" in page.find(".steps li", "move_to_savings").text
    server.rpc("fork_session", session_id=parent, version=2)  # while the page is open
    page.find(".steps li", "2 forks")
    page.sees("Forked here")
    page.click(fork[:8], ".side a")
    page.at(f"#/sessions/{fork}")
    page.until(lambda: len(page.driver.find_elements("css selector", ".steps li.inherited")) == 3, "the parent's steps")
    rows = [row.text.split("\n")[:2] for row in page.driver.find_elements("css selector", ".steps li:not([hidden])")]
    assert rows[0] == ["0", "get_balance"]
    assert [row[-1] for row in rows[1:3]] == ["send_money", "move_to_savings"]
    assert rows[3][0] == "Start"
    assert rows[4] == ["0", "get_balance"]
    page.click("move_to_savings", ".steps .inherited a")
    page.at(f"#/sessions/{parent}?version=2&record=2")


def test_fork_of_a_long_session_shows_its_last_inherited_steps(page, server):
    parent = bank(server, *[("get_balance", {})] * 130, pay("1.00"))
    (fork,) = server.rpc("fork_session", session_id=parent)
    server.rpc("close_session", session_id=parent)  # The inherited steps remain.
    page.open(f"#/sessions/{fork['session_id']}")
    inherited = "return [...document.querySelectorAll('.steps .inherited .at')].map((each) => each.innerText)"
    page.until(lambda: page.run(inherited) == [str(n) for n in range(121, 131)], "the last ten")
    page.click("Show earlier steps: 121 more")
    page.click("Show earlier steps: 21 more")
    page.until(lambda: page.run(inherited) == [str(n) for n in range(131)], "all of them")
    page.click("Forks", ".tabs a")
    page.sees(f"Forked from {parent[:8]}, which is deleted or has expired.")


def test_forks_of_a_session_are_shown_as_a_tree(page, server):
    root = bank(server, pay("1.00"), labels={"tree": "yes"})
    one, two = (fork["session_id"] for fork in server.rpc("fork_session", session_id=root, count=2))
    (inner,) = server.rpc("fork_session", session_id=two)
    server.rpc("fork_session", session_id=root, version=0, count=310)
    page.open(f"#/sessions/{inner['session_id']}")
    page.click("Forks", ".tabs a")
    page.sees("At least 314 sessions: the forks of some weren't searched.", "and 13 forks more")
    edges = page.run(
        "return [...document.querySelectorAll('.family .this')].map((each) => {"
        "  const way = [];"
        "  for (let item = each.closest('li'); item; item = item.parentElement.closest('li'))"
        "    way.unshift(item.querySelector('a').innerText);"
        "  return way; })"
    )
    assert edges == [[root[:8], two[:8], inner["session_id"][:8]]]  # though hundreds of forks come before it
    page.click(root[:8], ".family a")
    page.at(f"#/sessions/{root}?forks=")
    page.sees("312 forks")
    page.open(f"#/sessions/{one}?forks=%20")
    page.find(".family li p", root[:8]).find_element("link text", "Compare").click()
    page.at(f"#/compare/{one}/{root}?traces=")


def test_review_leads_from_the_losing_call_to_a_winning_fork(page, server):
    session_id = server.rpc("create_session", task="bank/moving-out")["session_id"]
    for order in (1, 3, 2):
        server.call(session_id, "cancel_standing_order", order_id=order)
    server.rpc("submit_answer", session_id=session_id, answer=MARKUP)
    page.open(f"#/sessions/{session_id}")
    page.click("Review", ".tabs a")
    page.sees("Lost at call 1, cancel_standing_order(order_id=3): the value fell from 1.00 to 0.00.")
    rows = [row.text.split("\n") for row in page.driver.find_elements("css selector", "ol.review:first-of-type li")]
    marks = ["as in the solution", "the losing call", "as in the solution", ""]
    assert [row[2].partition(" ")[2] for row in rows[:4]] == marks
    assert page.run("return document.querySelector('.turns .turned').innerText.includes('fails from here on')")
    for width, dark in ((400, True), (1280, False)):
        page.resize(width, dark=dark)
        page.run("scrollTo(0, 0)")
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.tab_to("compared with the rollout")
    page.press(Keys.ENTER)
    page.at(f"#/compare/{session_id}/")
    page.sees("Compare", "cancel_standing_order", "failed reward 0", "passed reward 1", "not live")
    page.run("history.back()")
    page.sees("What would have won, from version 1")
    page.click("Forks" if "Forks" in page.text() else "1 fork", ".tabs a")
    page.sees("begins with cancel_standing_order(order_id: 2)", "passed reward 1", "2 sessions in all.")
    page.find(".steps li", "value 0.00")  # as the review recorded it
    page.run("history.back()")
    page.sees("What would have won, from version 1")
    page.click("Edit and try")
    assert "run=cancel_standing_order" in page.at(f"#/sessions/{session_id}?version=1")
    assert page.field("order_id").get_attribute("value") == "3"
    page.run("history.back()")
    (fork,) = server.rpc("list_sessions", labels={"review": session_id, "line": "best"})  # clicked twice, created once
    assert server.rpc("evaluate_session", session_id=fork["session_id"])["passed"]
    assert page.run("return window.ran") == 0


def test_three_clicks_lead_from_a_run_to_a_fork_that_wins(page, server, tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].replace("http://127.0.0.1:8000", server.url)
    (tmp_path / "careless.py").write_text(program, encoding="utf-8")
    runpy.run_path(str(tmp_path / "careless.py"))
    page.open("#/runs?by=run&run=careless")
    page.sees("60 rollouts", "not live")
    page.click("✗", ".cells a")
    page.click("Review", ".tabs a")
    page.sees("What would have won")
    page.click("", ".side h3 + p > a:first-of-type")
    fork = page.until(lambda: re.match(r"#/sessions/(\w+)$", page.hash), "the fork")[1]
    page.sees("review=")
    assert server.rpc("evaluate_session", session_id=fork)["passed"]
    page.open("#/runs?by=run&run=careless")
    page.click("Review the 32 rollouts that failed")
    page.sees("19 of 32", "13 of 32", "Lost at")
    page.click("send_money was never made", ".faults a")
    page.sees("Rollouts that match: 13")


def test_long_words_and_large_objects_have_short_differences(page, server):
    notes = {f"note {number:03}": "x" * 5 for number in range(400)} | {"long": "a" * 100_000}
    options = {"pages": {"notes": notes}}
    session_id = server.rpc("create_session", toolpacks=["pages"], options=options)["session_id"]
    for number in range(0, 330, 30):
        server.call(session_id, "write", name=f"note {number:03}", content="y")
    server.call(session_id, "write", name="long", content="a" * 60_000 + "b" + "a" * 39_999)
    page.open(f"#/compare/{session_id}/{session_id}?a=0")
    page.sees("12 differences", "a part of the text", "note 001 … note 029")
    assert [mark.text for mark in page.driver.find_elements("css selector", ".lines mark")] == ["a", "b"]
    assert page.run("return document.documentElement.scrollHeight") < 3000


def test_values_of_a_sessions_steps_are_shown_as_a_table(page, server):
    session_id = server.rpc("create_session", task="chores/raises")["session_id"]
    for chore in ("dishes", "missing"):  # Without `missing` the evaluator fails; with it the reward is 1.
        server.call(session_id, "do", chore=chore)

    def sometimes(agent, fork):
        if fork["labels"]["member"] in "01":
            agent.run_function("do", {"chore": "missing"})

    with Client(server.url) as client:
        client.values(session_id, k=4, finish=sometimes)
    labels = {"values": session_id, "finish": "sometimes", "step": "0", "member": "7"}
    server.rpc("fork_session", session_id=session_id, labels=labels)
    (own,) = server.rpc("fork_session", session_id=session_id)
    page.open(f"#/sessions/{session_id}?forks=%20")
    page.sees("with the finish sometimes", "1 fork of steps is open.")
    rows = page.driver.find_elements("css selector", ".values tbody tr")
    assert [[cell.text for cell in row.find_elements("css selector", "td")] for row in rows] == [
        ["version 0", "1.00 ± 0.00", "", "2 2 invalid"],
        ["version 1", "1.00 ± 0.00", "0.00 ± 0.00", "2 2 invalid"],
        ["version 2", "1.50 ± 0.29", "0.50 ± 0.29", "4"],
    ]
    nodes = [node.text for node in page.driver.find_elements("css selector", ".family li li p a:first-child")]
    assert nodes == [own["session_id"][:8]]  # The forks that measured the values aren't in the tree.
    page.click("version 1", ".values a")
    page.at(f"#/sessions/{session_id}?version=1")


def test_traces_are_compared_and_the_first_difference_is_marked(page, server):
    same = [("get_balance", {})] * 20
    one = bank(server, *same, pay("5.00"), ("get_iban", {}), pay("1.00"))
    two = bank(server, *same, ("get_iban", {}), pay("2.00"))
    page.open(f"#/compare/{one}/{two}")
    page.click("Traces", ".tabs a")
    page.sees("2 differences in 23 steps of A and 22 steps of B")
    row = page.find("#first-difference", "first difference")
    assert [cell.text.replace("\n", " ")[:25] for cell in row.find_elements("css selector", "td")] == [
        "first difference 20 send_",
        "\N{EN DASH}",
    ]
    rows = [each.text for each in page.driver.find_elements("css selector", ".traces tbody tr")]
    assert [len(rows), rows[0]] == [6, "18 equal steps"]
    assert rows[4].startswith("21 20 get_iban")
    assert ['"1.00"' in rows[5], '"2.00"' in rows[5]] == [True, True]
    page.click("Go to the first difference")
    assert page.run("return document.activeElement.closest('tr').id") == "first-difference"
    page.click("18 equal steps")
    page.until(lambda: len(page.driver.find_elements("css selector", ".traces tbody tr")) == 23, "all steps")
    page.write("Av", "0")
    page.write("Bv", "0")
    page.click("Compare", "form button")
    page.sees("1 difference in 20 steps of A and 21 steps of B")  # A call that changes nothing belongs to version 0.
    page.resize(400)
    assert page.run("return document.documentElement.scrollWidth") <= 400
    page.open(f"#/compare/{one}/{one}?traces=%20")
    page.sees("Both traces are equal")


def test_messages_show_participants_by_name_and_roles_as_roles(page, server):
    created = server.rpc("create_session", toolpacks=["bank"], participants={"customer": {"functions": ["get_iban"]}})
    session_id, paths = created["session_id"], created["participants"]

    def act(name, method, **params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        assert "result" in server.http.post(paths[name]["agent_path"], json=body).json()

    act("customer", "say", text="So little?", to="agent")
    act("agent", "run_function", function="get_balance")
    server.rpc("add_message", session_id=session_id, role="user", content="Aside.")
    page.open(f"#/sessions/{session_id}?talk=%20")
    page.find(".talk summary", "agent get_balance").click()
    page.find(".talk pre", "1840.25")
    act("agent", "submit_answer", answer="Goodbye.")  # The answer appears by itself, and open parts stay open.
    page.find(".talk .said", "Goodbye.")
    assert page.find(".talk pre", "1840.25")
    texts = [" ".join(each.text.split("\n")) for each in page.driver.find_elements("css selector", ".talk .said")]
    assert [re.sub(r" \d.*step", " step", each) for each in texts] == [
        "customer to agent step 0 So little?",
        "role user step 2 Aside.",
        "agent answer step 3 Goodbye.",
    ]
    page.find(".steps li", "message of customer")
    page.find(".steps li", "message of the user")
    server.call(session_id, *pay("1.00")[:1], **pay("1.00")[1])
    page.find(".talk .called", "client send_money")
    server.rpc("reset_session", session_id=session_id, version=0)
    page.until(lambda: "send_money" not in page.find(".talk").text, "the end of what was undone")
