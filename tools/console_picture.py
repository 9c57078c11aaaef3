"""Writer of the picture of the console in the README, which it takes with a temporary server and browser.

python -m tools.console_picture
"""

import tempfile
from pathlib import Path

import browser
import server_process

PICTURE = Path(__file__).parents[1] / "docs" / "evaluate" / "console.png"
LANDLORD = "DE89370400440532013000"
RENT = {"recipient": LANDLORD, "amount": "1080.00", "subject": "Rent, Deichweg 3", "interval": "monthly"}
CALLS = (
    ("list_standing_orders", {}),
    ("cancel_standing_order", {"order_id": 1}),
    ("create_standing_order", {**RENT, "first_day": "2026-04-01"}),
    ("move_from_savings", {"amount": "3000.00"}),
    ("send_money", {"recipient": LANDLORD, "amount": "2160.00", "subject": "Deposit, Deichweg 3"}),
    ("cancel_standing_order", {"order_id": 3}),
    ("cancel_standing_order", {"order_id": 2}),
)


def main():
    """Take the picture."""
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process.served(Path(folder), "--store", "memory:") as server,
        browser.browser(server.url, Path(folder)) as page,
    ):
        labels = {"run": "first", "rollout": "7"}
        session_id = server.rpc("create_session", task="bank/moving-out", labels=labels)["session_id"]
        for function, arguments in CALLS:
            server.call(session_id, function, **arguments)
        server.rpc("submit_answer", session_id=session_id, answer="All is done.")
        page.resize(1280, 840)
        page.open(f"#/sessions/{session_id}?record=5&review=%20")
        page.sees("Lost at call 5, cancel_standing_order", "What would have won")
        page.run("document.querySelector('details.prompt').open = false")
        PICTURE.write_bytes(page.driver.get_screenshot_as_png())


if __name__ == "__main__":
    main()
