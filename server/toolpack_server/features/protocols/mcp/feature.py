"""Declaration of the feature `mcp`, which serves sessions to clients of the Model Context Protocol."""

from toolpack_server.features.protocols.mcp.banner import named_address
from toolpack_server.features.protocols.mcp.protocol import Mcp
from toolpack_server.features.protocols.mcp.results import McpPath
from toolpack_server.protocol.results import AddressPaths
from toolpack_server.wiring.feature import Feature


class McpFeature(Feature):
    name = "mcp"
    services = (Mcp,)
    results = {AddressPaths: McpPath}
    banner = (named_address,)
    address_paths = {"mcp_path": "/mcp/{key}"}
    about = "POST /mcp/<key> accepts MCP messages; POST /mcp also creates the session."
    routes = {
        "/mcp": "toolpack_server.features.protocols.mcp.own_session:OwnSessionEndpoint",
        "/mcp/": "toolpack_server.features.protocols.mcp.own_session:OwnSessionEndpoint",
        "/mcp/{key}": "toolpack_server.features.protocols.mcp.endpoint:McpEndpoint",
    }
