"""In which order names stand: as people count, however long their numbers are."""

from server.features.tasks.summary_order import in_order
from server.jsonio.strict import loads


def test_names_are_sorted_by_their_numbers_however_long_those_are():
    names = ["step 9", "step 010", "step 10", "step " + "1" * 5000, "step " + "2" * 5000]
    summaries = [{"session_id": str(at), "last_function": name} for at, name in enumerate(names)]
    texts, total = in_order(reversed(summaries), "last", "")
    assert ([loads(text)["last_function"] for text in texts], total) == (names, 5)
