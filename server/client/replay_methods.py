"""The methods of the clients for replays and bundles; see `methods` for the rule."""

from collections.abc import Mapping
from typing import Literal

from server.client.requests import Request, method
from server.results import Bundle, Replay, Session


class ClientReplayMethods:
    """The JSON-RPC methods for replays and bundles, with their parameters and results."""

    @method
    def replay_session(
        self, session_id: str, *, limit: int = 1000, labels: Mapping[str, str] | None = None
    ) -> Request[Replay]:
        """Run a session's records again, in a new session, up to the first that comes out differently."""
        params = {"session_id": session_id, "limit": limit, "labels": labels}
        return Request("replay_session", params, repeatable=False)

    @method
    def export_bundle(self, session_id: str, *, versions: Literal["all", "ends"] = "all") -> Request[Bundle]:
        """Get a session as one file, which `import_bundle` takes here or on another server."""
        return Request("export_bundle", {"session_id": session_id, "versions": versions})

    @method
    def import_bundle(
        self,
        bundle: str,
        *,
        mode: Literal["exact", "replay"] = "exact",
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
    ) -> Request[Session | Replay]:
        """Create a session from a bundle: exactly the one that was exported, or by running its records again."""
        params = {"bundle": bundle, "mode": mode, "labels": labels, "ttl_seconds": ttl_seconds}
        return Request("import_bundle", params, repeatable=False)
