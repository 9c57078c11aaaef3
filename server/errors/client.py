"""The exceptions of the Python client; `server.errors` shows the whole tree."""

from typing import Any

from server.errors.base import ToolpackServerError


class ClientError(ToolpackServerError):
    """The Python client didn't get what it asked for."""


class ReplyError(ClientError):
    """The server answered with an error.

    Attributes:
        code: Its JSON-RPC code; -32000 if the request was refused at the HTTP level.
        message: What went wrong.
        data: Further details.
    """

    def __init__(self, code: int, message: str, data: dict[str, Any]) -> None:
        detail = data.get("detail")
        super().__init__(f"{message}: {detail} ({code})" if detail else f"{message} ({code})")
        self.code, self.message, self.data = code, message, data


class NoReplyError(ClientError):
    """No answer came, however often the request was sent; the server may have handled it or not."""


class RemoteFunctionError(ClientError):
    """A function on the server raised an exception of a class that this process doesn't know."""


class EnvironmentDiffersError(ClientError):
    """An environment in this process isn't the one that the session on the server has."""
