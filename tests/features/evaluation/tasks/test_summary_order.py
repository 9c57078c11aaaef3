"""The order of summaries: names sort naturally, and equal values sort by session id."""

import pytest

from toolpack_server.features.evaluation.tasks.summary_order import sort_summaries
from toolpack_server.jsonio.strict import loads


def test_names_sort_naturally_by_numbers_of_any_length():
    names = ["step 9", "step 010", "step 10", "step " + "1" * 5000, "step " + "2" * 5000]
    summaries = [{"session_id": str(at), "last_function": name} for at, name in enumerate(names)]
    texts, total = sort_summaries(reversed(summaries), "last", "")
    assert ([loads(text)["last_function"] for text in texts], total) == (names, 5)


@pytest.mark.parametrize("order", ["calls", "-calls"])
def test_equal_values_sort_by_id_in_both_directions(order):
    summaries = [{"session_id": session_id, "calls": 3} for session_id in ("b", "a", "c")]
    texts, _ = sort_summaries(summaries, order, "")
    assert [loads(text)["session_id"] for text in texts] == ["a", "b", "c"]
