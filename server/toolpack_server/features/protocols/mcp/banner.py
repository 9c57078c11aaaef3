"""Line of the banner of `serve` that tells an MCP client's user which address to enter."""

from collections.abc import Sequence

from toolpack_server.base.settings import Settings
from toolpack_server.packs.inventory import Inventory


def named_address(url: str, settings: Settings, inventory: Inventory) -> Sequence[str]:
    """Return a line with an address that names a session and, as an example of the query, one toolpack."""
    names = sorted(inventory.toolpacks, key=lambda name: inventory.toolpacks[name].opt_in)  # opt-in toolpacks last
    packs = f"packs={names[0]}&" if names else ""
    token = ", with the header Authorization: Bearer <token>" if settings.tokens or settings.tokens_file else ""
    return [f"Or give this to an MCP client{token}: {url}/mcp?{packs}session=mine"]
