"""What MCP adds to the server."""

from server.feature import Feature
from server.features.mcp.protocol import Mcp


class McpFeature(Feature):
    services = (Mcp,)
    about = "POST /mcp/<key> speaks MCP instead."
    doors = {"/mcp": "server.features.mcp.endpoint:McpEndpoint"}
