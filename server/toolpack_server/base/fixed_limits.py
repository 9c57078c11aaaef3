"""Limits that are the same on every server, each with the reason for its number.

If an operator might need to change a limit, it is a setting instead (`settings.py`). The limits here protect the
server, or follow from the behaviour of clients. Normal use stays far below them. Only tests set other numbers.
"""

from pydantic import BaseModel, Field


class FixedLimits(BaseModel):
    """Limits without an environment variable."""

    queue_timeout_seconds: float = Field(
        30, gt=0, description="Maximum wait of a call for its session or for a thread, in seconds; clients wait for 75."
    )
    receive_seconds: float = Field(
        30,
        gt=0,
        description="Time limit for a request's body, in seconds; a third of it for the headers. "
        "A body of 16 MB then needs 5 Mbit/s.",
    )
    max_bytes_in_flight: int = Field(
        256 * 2**20,
        ge=1024,
        description="Maximum estimated memory for requests that a worker receives or answers: 16 of the largest ones.",
    )
    async_bytes: int = Field(
        2**30,
        ge=0,
        description="Maximum estimated memory for calls that wait in async functions, per worker: enough for 16,000 "
        "calls with 64 KB each.",
    )
    max_stuck_threads: int = Field(
        4,
        ge=0,
        description="Maximum number of stuck threads of a worker; a worker with more is replaced, because each stuck "
        "thread uses processor time.",
    )
    max_waiting_per_session: int = Field(
        1000,
        ge=1,
        description="Maximum number of calls that wait for one session; the session runs one at a time, and each "
        "waits at most queue_timeout_seconds.",
    )
    max_agent_requests: int = Field(
        16,
        ge=1,
        description="Maximum number of concurrent requests to one agent's address; an agent uses a few tools at once.",
    )
    max_batch: int = Field(1000, ge=1, description="Maximum size of a batch: ten times the size that our clients send.")
    max_json_depth: int = Field(128, ge=8, description="Maximum nesting of a request's JSON; each level uses stack.")
    max_json_values: int = Field(
        250_000,
        ge=1000,
        description="Maximum number of values in a request's JSON; a value in memory may be 100 times as large as its "
        "text.",
    )
    max_list_bytes: int = Field(
        4 * 2**20,
        ge=1024,
        description="Maximum size of a list in an answer; the client requests the rest of a longer list separately.",
    )
    max_view_rows: int = Field(
        1000,
        ge=1,
        description="Maximum number of rows of a database table in the JSON of an environment; a client requests "
        "further rows in pages.",
    )
    scratch_bytes: int = Field(
        512 * 2**20, ge=0, description="Maximum size of cached working copies of databases and files per worker."
    )
