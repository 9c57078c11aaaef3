"""Line in the banner of `serve` that shows which address to enter in an MCP client."""

from collections.abc import Sequence

from toolpack_server.base.settings import Settings
from toolpack_server.packs.inventory import Inventory


def named_address(url: str, settings: Settings, inventory: Inventory) -> Sequence[str]:
    """Return a line with an address that names a session, and one toolpack as an example of the query."""
    names = sorted(inventory.toolpacks, key=lambda name: inventory.toolpacks[name].opt_in)  # opt-in ones last
    packs = f"packs={names[0]}&" if names else ""
    token = ", with the header Authorization: Bearer <token>" if settings.tokens or settings.tokens_file else ""
    return [f"Or give this to an MCP client{token}: {url}/mcp?{packs}session=mine"]
