"""Records as the store keeps them: a line that clients see, and one with what only the repeat of a call needs.

The rule: what was damaged in the store is said to be damaged. It is neither shown nor taken for a fault of the server.
"""

from typing import Any

import orjson

from server.errors import StateDamagedError
from server.jsonio.strict import Fragment, loads
from server.stores.base import Record

CALL = {"function", "kwargs", "result", "error"}


def shown(record: Record) -> Fragment:
    """Get the line that clients see.

    Raises:
        StateDamagedError: It isn't JSON.
    """
    line = record.body.partition(b"\n")[0]
    try:
        orjson.loads(line)
    except ValueError:
        raise _damaged(record) from None
    return Fragment(line)


def loaded(record: Record) -> tuple[dict[str, Any], Any]:
    """Read both lines of a call's record.

    Raises:
        StateDamagedError: They aren't those of a call.
    """
    try:
        line, failure = map(loads, record.body.split(b"\n"))
    except ValueError:
        raise _damaged(record) from None
    if not (isinstance(line, dict) and line.keys() >= CALL):
        raise _damaged(record)
    return line, failure


def _damaged(record: Record) -> StateDamagedError:
    return StateDamagedError(
        f"Record {record.index} of the session is damaged in the store: restore a backup, or close the session."
    )
