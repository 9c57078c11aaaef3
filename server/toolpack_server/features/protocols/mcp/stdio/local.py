"""MCP on standard input and output with a session in this process.

The session is in memory and ends with the conversation.
"""

from collections.abc import Mapping
from typing import Any

from toolpack_server.base.errors import StartError
from toolpack_server.base.settings import Settings
from toolpack_server.features.protocols.mcp.messages import McpMessage
from toolpack_server.features.protocols.mcp.protocol import Mcp
from toolpack_server.features.protocols.mcp.stdio.conversation import StdioConversation
from toolpack_server.features.protocols.mcp.stdio.lines import LineReader, LineWriter
from toolpack_server.packs.catalog import Catalog
from toolpack_server.protocol.parameters import MAX_TTL_SECONDS
from toolpack_server.rpc.caller import Caller
from toolpack_server.rpc.codes import REFUSALS, sentence
from toolpack_server.wiring.service import Service


async def converse(settings: Settings, catalog: Catalog, options: Mapping[str, str], source: int, sink: int) -> None:
    """Create a session, and answer messages from the descriptor `source` on the descriptor `sink`.

    The session has the toolpacks that the settings name, or all that aren't opt-in.

    Args:
        options: Further parameters of `create_session`, such as `task`.

    Raises:
        StartError: The session can't be created.
    """
    service = Service(settings, catalog)
    async with service.running():
        packs = {"toolpacks": [*settings.packs]} if settings.packs else {}
        session_id = await _create(service, {**packs, **options})
        caller = Caller("", session_id)

        async def read(line: bytes) -> McpMessage:
            return await service.feature(Mcp).read(line, "")

        async def answer(message: McpMessage) -> bytes:
            return (await service.feature(Mcp).answer(caller, message)).body

        reader, writer = LineReader(source, settings.max_body_bytes), LineWriter(sink)
        conversation = StdioConversation(reader, writer, read, answer, tells_progress=True)
        await conversation.hold(settings.drain_seconds, service.sessions.queues.stop)


async def _create(service: Service, params: Mapping[str, Any]) -> str:
    """Create the conversation's session and return its id. Raise a `StartError` if it is refused."""
    try:
        session = await service.invoke(Caller(), "create_session", {**params, "ttl_seconds": MAX_TTL_SECONDS})
    except REFUSALS as error:
        raise StartError(f"The session can't be created: {sentence(error)}") from None
    session_id: str = session["session_id"]
    return session_id
