"""Records in bundles: an import accepts only records in the documented form."""

import pytest

from toolpack_server.base.errors import InvalidParamsError
from toolpack_server.features.replay.bundle_format import record_of
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_record_kinds

PLACE = {"index": 0, "version": 1, "started_at": "2030-01-01T00:00:00Z", "duration_ms": 1}
NESTED = {"function": "f", "kwargs": {}, "result": 1, "error": None}
CALL = {**PLACE, "kind": "call", **NESTED}
MET = {"rules": ["rule"], "run": True, "agent": {"result": "heard"}}
RIGHT = [
    {**CALL, "nested": [NESTED | {"parent": 1}, NESTED], "perturbed": MET, "by": "ann"},
    {**PLACE, "kind": "message", "role": "user", "content": "Hello", "by": "ann"},
    {**PLACE, "kind": "reset", "to_version": 0},
    {**PLACE, "kind": "answer", "answer": "42"},
    {**PLACE, "kind": "of nobody here", "anything": [1]},
]
WRONG = [
    {**CALL, "nested": [NESTED, NESTED | {"parent": 0}]},
    {**CALL, "nested": [NESTED | {"parent": -1}]},
    {**CALL, "nested": [{}]},
    {**CALL, "perturbed": {**MET, "agent": {"index": 7}}},
    {**CALL, "perturbed": {"rules": []}},
    {**CALL, "kwargs": "text"},
    {**CALL, "version": -1},
    {**PLACE, "kind": "message", "role": "robot", "content": "Hello"},
    {**PLACE, "kind": "reset", "to_version": -1},
    {**PLACE, "kind": "answer", "answer": 42},
    {**PLACE, "kind": "verdict", "task": "t"},
    {"kind": "of nobody here"},
]


@pytest.fixture(scope="module")
def kinds():
    return all_record_kinds(load_features())


def test_records_with_the_documented_form_are_accepted(kinds):
    for record in RIGHT:
        assert record_of(record, kinds).kind == record["kind"]
    # Older records have null for members without a value.
    assert record_of({**CALL, "call_id": None, "failure": None, "state": None}, kinds).call_id is None


def test_record_with_another_form_is_rejected(kinds):
    for record in WRONG:
        with pytest.raises(InvalidParamsError, match="lacks what is needed"):
            record_of(record, kinds)
