"""Data frames that are stored as the page describes are restored exactly, with the exceptions that the page lists."""

import datetime as dt
import decimal
import importlib
import re
from pathlib import Path

import pytest

from toolpack_server import Files

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

PAGE = (Path(__file__).parents[2] / "docs" / "write" / "worlds.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def store_and_restore(tmp_path_factory):
    """Return a function that stores and restores a frame with the page's code."""
    folder = tmp_path_factory.mktemp("packs")
    source = re.search(r"^## Data frames\n.*?^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    (folder / "sales_of_the_page.py").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        page = importlib.import_module("sales_of_the_page")

    def keep(frame):
        tables = Files()
        page.keep_frame(tables, "frame", frame)
        return page.frame_of(tables, "frame")

    return keep


EXACT = {
    "numbers of any width": {"x": pd.array([1, 2], dtype="int8"), "y": pd.array([1, 2], dtype="float32")},
    "NaN": {"x": [1.5, float("nan")]},
    "missing values of pandas' own types": {
        "x": pd.array([1, None], dtype="Int64"),
        "y": pd.array([True, None], dtype="boolean"),
    },
    "texts": {"x": ["a", None], "y": ["", "\u202e"]},
    "categories in order": {"x": pd.Categorical(["a", "b"], categories=["b", "a", "c"], ordered=True)},
    "times with zones": {"x": pd.to_datetime(["2026-01-01", "2026-07-01"]).tz_localize("Europe/Berlin")},
    "durations, days, periods": {
        "x": pd.to_timedelta([1, 2], unit="s"),
        "y": [dt.date(2026, 1, 1), dt.date(1, 1, 1)],
        "z": pd.period_range("2026-01", periods=2, freq="M"),
    },
    "decimals": {"x": [decimal.Decimal("1.10"), decimal.Decimal(2)]},
}
INDEXES = [
    None,
    pd.Index(["p", "p"], name="name"),
    pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["k", "n"]),
    pd.RangeIndex(5, 9, 2, name="r"),
]


@pytest.mark.parametrize("index", INDEXES, ids=["plain", "named", "of several levels", "a range"])
@pytest.mark.parametrize("columns", EXACT.values(), ids=EXACT)
def test_a_frame_is_restored_exactly(store_and_restore, columns, index):
    frame = pd.DataFrame(columns)
    if index is not None:
        frame.index = index
    again = store_and_restore(frame)
    pd.testing.assert_frame_equal(again, frame, check_index_type="exact", check_column_type="exact", check_exact=True)
    assert store_and_restore(again).equals(again)


def test_frames_that_are_not_restored_exactly(store_and_restore):
    with pytest.raises(ValueError, match="Could not convert"):
        store_and_restore(pd.DataFrame({"x": [1, "a"]}))
    assert store_and_restore(pd.DataFrame({"x": [{"a": 1}, {"b": 2}]}))["x"][0] == {"a": 1.0, "b": None}
    assert type(store_and_restore(pd.DataFrame({"x": [[1, 2]]}))["x"][0]).__name__ == "ndarray"
    assert store_and_restore(pd.DataFrame({"x": pd.Series(["a", None], dtype="object")}))["x"].dtype == "str"
    assert (
        store_and_restore(pd.DataFrame({"x": [1]}, index=pd.date_range("2026-01-01", periods=1, freq="D"))).index.freq
        is None
    )
