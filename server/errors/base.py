"""What all exceptions have in common; `server.errors` shows the whole tree."""

MAX_SHOWN = 200


def shown(name: str) -> str:
    """Get what an error's text shows of a name that a client has sent: it may be as long as a request."""
    return name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}…"


class ToolpackServerError(Exception):
    """Base class of all exceptions below, except `Interrupted`."""
