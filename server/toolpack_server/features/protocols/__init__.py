"""Further protocols for agents, besides JSON-RPC."""
