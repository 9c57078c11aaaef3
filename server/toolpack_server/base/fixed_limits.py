"""Limits that are the same on every server, each with the reason for its number.

What an operator has a reason to change is a setting (`settings.py`). What stands here protects the server, is
far from what honest use comes to, or follows from what clients and people do. Only tests give other numbers.
"""

from pydantic import BaseModel, Field


class FixedLimits(BaseModel):
    """The limits that no environment variable changes."""

    queue_timeout_seconds: float = Field(
        30, gt=0, description="How long a call may wait for its session, or for a thread: clients wait for 75 seconds."
    )
    receive_seconds: float = Field(
        30,
        gt=0,
        description="Time limit for a request's body; its headers have a third: 16 MB in it take 5 Mbit/s.",
    )
    max_bytes_in_flight: int = Field(
        256 * 2**20,
        ge=1024,
        description="Estimated memory for requests that a worker receives or answers: 16 of the largest ones.",
    )
    async_bytes: int = Field(
        2**30,
        ge=0,
        description="Estimated memory for calls that wait in async functions, per worker: 64 KB for each of 16,000.",
    )
    max_stuck_threads: int = Field(
        4,
        ge=0,
        description="Threads stuck in functions that a worker holds before it is replaced; each computes.",
    )
    max_waiting_per_session: int = Field(
        1000, ge=1, description="Calls that may wait for one session: they run one at a time, within the wait above."
    )
    max_agent_requests: int = Field(
        16,
        ge=1,
        description="Requests to one agent's address that are answered at once: it has a few tools at work.",
    )
    max_batch: int = Field(1000, ge=1, description="Members of a batch: ten times as many as the clients send at once.")
    max_json_depth: int = Field(128, ge=8, description="Nesting of a request's JSON: each level takes stack.")
    max_json_values: int = Field(
        250_000, ge=1000, description="Values in a request's JSON: they take a hundred times as much memory as text."
    )
    max_list_bytes: int = Field(
        4 * 2**20, ge=1024, description="Size at which a list in an answer ends: the next request goes on from there."
    )
    max_view_rows: int = Field(
        1000, ge=1, description="Rows of a database's table that JSON of an environment shows: others come by page."
    )
    scratch_bytes: int = Field(
        512 * 2**20, ge=0, description="Bytes of databases and files that a worker keeps ready: the least recent go."
    )
