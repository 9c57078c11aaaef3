"""Registration of probes, and the list of guarantees.

A probe is a function with a sentence as its docstring. If the server keeps what the sentence promises, the probe
returns. Otherwise it raises `Failed`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from toolpack_conformance.target import Target

GUARANTEES = (
    "isolation",
    "atomic",
    "exactly once",
    "ordered",
    "expected version",
    "fork",
    "reset",
    "exact",
    "deadline",
    "secrecy",
    "faults are no rewards",
    "limits",
    "JSON-RPC 2.0",
    "MCP",
    "ORS",
    "OpenEnv",
)

# The codes of docs/reference/protocol.md and docs/reference/mcp.md.
SESSION_NOT_FOUND = -32001
RAISED = -32002
NO_FUNCTION = -32003
ARGUMENTS = -32004
CONFLICT = -32005
TOO_LARGE = -32007
REUSED = -32009
LATE = -32010
NO_VERSION = -32011
MCP_SESSION_NOT_FOUND = -33001
EVALUATOR = -32013
PARSE = -32700
INVALID = -32600
NO_METHOD = -32601
PARAMETERS = -32602


class Probe(NamedTuple):
    """A check of one sentence of a guarantee."""

    guarantee: str
    sentence: str
    run: Callable[[Target], None]


PROBES: list[Probe] = []


def probe(guarantee: str) -> Callable[[Callable[[Target], None]], Callable[[Target], None]]:
    """Register a function as a probe of a guarantee. Its docstring is the sentence that the server must keep."""

    def add(run: Callable[[Target], None]) -> Callable[[Target], None]:
        PROBES.append(Probe(guarantee, (run.__doc__ or "").strip(), run))
        return run

    return add


def at_once(number: int, run: Callable[[int], Any]) -> list[Any]:
    """Run a function in `number` threads at the same time, each with its index, and return the results."""
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))
