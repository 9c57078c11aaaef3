"""MCP (Model Context Protocol): messages of both eras, the methods that answer them, and tool results.

`protocol`, `messages` and `results` don't depend on the transport: HTTP is in `endpoint` and `own_session`, standard
input and output in `stdio`. The server stores nothing for an MCP client; each message has all that its answer needs.
"""
