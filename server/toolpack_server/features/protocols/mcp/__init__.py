"""MCP, the Model Context Protocol: an agent's messages in both eras, and the results of its tools.

Nothing here knows HTTP or standard input, which bring messages and carry answers away. Nothing is kept for a
client: every message has all that its answer needs.
"""
