"""A session in this process, in memory, for one client.

It lives as long as the conversation, and nothing of it is kept.
"""

from collections.abc import Sequence

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


async def converse(settings: Settings, catalog: Catalog, source: int, sink: int) -> None:
    """Answer the messages that come from one descriptor on another, in a new session.

    It has the toolpacks that the settings name, or all that are not opt-in.

    Raises:
        StartError: The session can't be created.
    """
    service = Service(settings, catalog)
    async with service.running():
        session_id = await _create(service, settings.packs or None)
        caller = Caller("", session_id)

        async def read(line: bytes) -> McpMessage:
            return await service.feature(Mcp).read(line, "")

        async def answer(message: McpMessage) -> bytes:
            return (await service.feature(Mcp).answer(caller, message)).body

        reader, writer = LineReader(source, settings.max_body_bytes), LineWriter(sink)
        conversation = StdioConversation(reader, writer, read, answer, tells_progress=True)
        await conversation.hold(settings.drain_seconds, service.sessions.queues.stop)


async def _create(service: Service, toolpacks: Sequence[str] | None) -> str:
    params = {"toolpacks": toolpacks and list(toolpacks), "ttl_seconds": MAX_TTL_SECONDS}
    try:
        created = await service.invoke(Caller(), "create_session", params)
    except REFUSALS as error:
        raise StartError(f"No session can be created: {sentence(error)}") from None
    session_id: str = created["session_id"]
    return session_id
