"""MCP (Model Context Protocol): its messages, the methods that answer them, and the results of tools.

The server accepts two eras of MCP: the *modern* era (version 2026-07-28) and the *legacy* era (all earlier versions).
`protocol`, `messages` and `results` don't depend on the transport: HTTP is in `endpoint` and `own_session`, standard
input and output in `stdio`. The server stores nothing for an MCP client, because each message
has all that its answer needs.
"""
