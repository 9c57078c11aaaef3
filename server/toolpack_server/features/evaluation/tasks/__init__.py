"""Tasks: things for agents to do, listed, begun, answered and evaluated."""
