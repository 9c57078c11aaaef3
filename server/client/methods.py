"""The methods of the clients: the request that each sends, and the type of its result.

The rule: everything else about them, `requests.method` adds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from server.client.replay_methods import ClientReplayMethods
from server.client.requests import Request, call_id_or_new, method
from server.client.task_methods import AgentTaskMethods, ClientTaskMethods
from server.results import Envelope, Export, FunctionList, Json, Record, Session, ToolpackDescription

Format = Literal["native", "openai", "anthropic", "gemini", "mcp"]


class AgentMethods(AgentTaskMethods):
    """The JSON-RPC methods of an agent's address, where the session is implied."""

    @method
    def list_functions(self, *, format: Format = "native") -> Request[FunctionList]:  # noqa: A002 - the contract's name
        """List the session's functions."""
        return Request("list_functions", {"format": format})

    @method
    def run_function(
        self,
        function: str,
        kwargs: Mapping[str, Any] | str | None = None,
        *,
        raise_on_error: bool = False,
        call_id: str | None = None,
        expected_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Request[Envelope]:
        """Run a function; see `Client.run_function`."""
        return Request(
            "run_function",
            {
                "function": function,
                "kwargs": {} if kwargs is None else kwargs,
                "raise_on_error": raise_on_error,
                "call_id": call_id_or_new(call_id),
                "expected_version": expected_version,
                "timeout_seconds": timeout_seconds,
            },
        )


class ClientMethods(ClientTaskMethods, ClientReplayMethods):
    """The JSON-RPC methods, with their parameters and results; the server's OpenRPC document describes each."""

    @method
    def create_session(
        self,
        toolpacks: Sequence[str] | None = None,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Mapping[str, Any] | None = None,
        ttl_seconds: float | None = None,
        labels: Mapping[str, str] | None = None,
        call_id: str | None = None,
        task: str | None = None,
        seed: str | None = None,
        clock: str | None = None,
        clock_step_seconds: float | None = None,
    ) -> Request[Session]:
        """Create a session: a private world of the chosen toolpacks."""
        return Request(
            "create_session",
            {
                "toolpacks": toolpacks,
                "options": options,
                "environment": environment,
                "ttl_seconds": ttl_seconds,
                "labels": labels,
                "call_id": call_id_or_new(call_id),
                "task": task,
                "seed": seed,
                "clock": clock,
                "clock_step_seconds": clock_step_seconds,
            },
        )

    @method
    def list_toolpacks(self) -> Request[list[ToolpackDescription]]:
        """List the loaded toolpacks: their options, environments and functions."""
        return Request("list_toolpacks", {})

    @method
    def list_functions(self, session_id: str | None = None, *, format: Format = "native") -> Request[FunctionList]:  # noqa: A002 - the contract's name
        """List a session's functions; without a session, all that are loaded."""
        return Request("list_functions", {"session_id": session_id, "format": format})

    @method
    def run_function(
        self,
        session_id: str,
        function: str,
        kwargs: Mapping[str, Any] | str | None = None,
        *,
        raise_on_error: bool = False,
        call_id: str | None = None,
        expected_version: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Request[Envelope]:
        """Run a function; with `raise_on_error` a failed call raises `ReplyError`.

        `kwargs` may be the JSON text of the arguments, as models' tool calls carry it.
        """
        return Request(
            "run_function",
            {
                "session_id": session_id,
                "function": function,
                "kwargs": {} if kwargs is None else kwargs,
                "raise_on_error": raise_on_error,
                "call_id": call_id_or_new(call_id),
                "expected_version": expected_version,
                "timeout_seconds": timeout_seconds,
            },
        )

    @method
    def get_session(self, session_id: str) -> Request[Session]:
        """Describe a session."""
        return Request("get_session", {"session_id": session_id})

    @method
    def get_environment(self, session_id: str, *, version: int | None = None, pointer: str = "") -> Request[Any]:
        """Get the JSON of a session's environments, by toolpack, or the part at a JSON Pointer (RFC 6901)."""
        return Request("get_environment", {"session_id": session_id, "version": version, "pointer": pointer})

    @method
    def diff_environment(
        self,
        session_id: str,
        *,
        from_version: int | None = None,
        to_version: int | None = None,
        to_session_id: str | None = None,
    ) -> Request[list[dict[str, Json]]]:
        """Get the JSON Patch (RFC 6902) from one version's environments to another's, or to another session's."""
        return Request(
            "diff_environment",
            {
                "session_id": session_id,
                "from_version": from_version,
                "to_version": to_version,
                "to_session_id": to_session_id,
            },
        )

    @method
    def get_trace(
        self, session_id: str, *, after: int = -1, limit: int = 100, path: bool = False
    ) -> Request[list[Record]]:
        """Get a session's records, in order; with `path` only those that led to its current version."""
        return Request("get_trace", {"session_id": session_id, "after": after, "limit": limit, "path": path})

    @method
    def fork_session(
        self,
        session_id: str,
        *,
        version: int | None = None,
        count: int = 1,
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        call_id: str | None = None,
        seed: str | None = None,
        clock: str | None = None,
        clock_step_seconds: float | None = None,
    ) -> Request[list[Session]]:
        """Create sessions that start from a version of this one."""
        return Request(
            "fork_session",
            {
                "session_id": session_id,
                "version": version,
                "count": count,
                "labels": labels,
                "ttl_seconds": ttl_seconds,
                "call_id": call_id_or_new(call_id),
                "seed": seed,
                "clock": clock,
                "clock_step_seconds": clock_step_seconds,
            },
        )

    @method
    def reset_session(self, session_id: str, *, version: int = 0, call_id: str | None = None) -> Request[Session]:
        """Commit a new version with the content of an older one."""
        params = {
            "session_id": session_id,
            "version": version,
            "call_id": call_id_or_new(call_id),
        }
        return Request("reset_session", params)

    @method
    def close_session(self, session_id: str) -> Request[bool]:
        """Close a session and delete all its data."""
        return Request("close_session", {"session_id": session_id}, repeatable=False)

    @method
    def close_sessions(self, labels: Mapping[str, str]) -> Request[int]:
        """Close all sessions that have these labels, and get their number."""
        return Request("close_sessions", {"labels": labels}, repeatable=False)

    @method
    def list_sessions(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        after: str = "",
        limit: int = 100,
        parent: str | None = None,
        order: Literal["id", "-created"] = "id",
    ) -> Request[list[Session]]:
        """List the caller's sessions, or the forks of one, sorted by session_id or the newest first."""
        params = {"labels": labels, "after": after, "limit": limit, "parent": parent, "order": order}
        return Request("list_sessions", params)

    @method
    def export_session(self, session_id: str, *, version: int | None = None) -> Request[Export]:
        """Get an exact snapshot of a session, for a client that has the same classes and trusts the server."""
        return Request("export_session", {"session_id": session_id, "version": version})

    @method
    def discover(self) -> Request[dict[str, Any]]:
        """Get the OpenRPC document of the server."""
        return Request("rpc.discover", {})
