"""The line at which a function raised an error: authors and operators see it, agents don't."""

import json

import pytest
from serving import IN_BOTH, PACKS

from toolpack_server.functions.tracebacks import raised_at

pytestmark = IN_BOTH


def test_log_has_the_line_where_a_function_raised(bench):
    messages = []
    bench.service.sessions._observer._log.write = messages.extend
    session = bench.create("ledger")
    envelope = bench.call(session, "fail", text="no")
    assert envelope["error"]
    record = bench.rpc("get_trace", session_id=session)
    assert str(PACKS) not in json.dumps([envelope, record])
    bench.result(session, "total")
    raised, fine = messages[-2:]
    file, line, function = raised.raised_at.split(":")
    assert file == str(PACKS / "ledger.py")
    assert "raise" in (PACKS / "ledger.py").read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert function.strip() == "fail"
    assert fine.raised_at is None


def test_innermost_line_outside_libraries_is_named():
    def decode():
        json.loads("{")

    with pytest.raises(ValueError, match="Expecting") as error:
        decode()
    assert raised_at(error.value).endswith("decode")
