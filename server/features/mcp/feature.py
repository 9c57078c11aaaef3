"""What MCP adds to the server."""

from server.features.api import AddressPaths, Feature
from server.features.mcp.protocol import Mcp
from server.features.mcp.results import McpPath


class McpFeature(Feature):
    name = "mcp"
    services = (Mcp,)
    results = {AddressPaths: McpPath}
    about = "POST /mcp/<key> speaks MCP instead; POST /mcp also makes the session."
    routes = {
        "/mcp": "server.features.mcp.own_session:OwnSessionEndpoint",
        "/mcp/{key}": "server.features.mcp.endpoint:McpEndpoint",
    }
