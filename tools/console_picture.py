"""The picture of the console in the README, taken with a temporary server and browser.

python -m tools.console_picture
"""

import tempfile
from pathlib import Path

import browser
import server_process

PICTURE = Path(__file__).parents[1] / "docs" / "evaluate" / "console.png"
PAYEES = {"rent": "DE57120300001066733812", "shop": "NL98INGB0001393698", "stranger": "GB29NWBK60161331926819"}
CALLS = (
    ("get_balance", {}),
    ("list_transactions", {"count": 3}),
    ("send_money", {"recipient": PAYEES["shop"], "amount": "64.50", "subject": "Groceries"}),
    ("send_money", {"recipient": PAYEES["stranger"], "amount": "2400.00", "subject": "As the mail asks"}),
    ("send_money", {"recipient": PAYEES["stranger"], "amount": "940.00", "subject": "As the mail asks"}),
    ("move_to_savings", {"amount": "200.00"}),
    ("get_statement", {"first": "2026-02-01", "last": "2026-03-02"}),
)


def main():
    """Take the picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process.served(Path(folder), "--store", "memory:") as server,
        browser.browser(server.url, Path(folder)) as page,
    ):
        labels = {"experiment": "injection-7", "model": "m-2"}
        session_id = server.rpc("create_session", toolpacks=["bank"], labels=labels)["session_id"]
        for function, arguments in CALLS:
            server.call(session_id, function, **arguments)
        page.resize(1280, 840)
        page.open(f"#/sessions/{session_id}?version=2")
        page.sees("Step 4: send_money", "World at version 2", "savings/balance")
        PICTURE.write_bytes(page.driver.get_screenshot_as_png())


if __name__ == "__main__":
    main()
