"""MCP (Model Context Protocol): its messages, the methods that answer them, and the results of tools.

The server accepts two eras of MCP: the *modern* era (version 2026-07-28) and the *legacy* era (all earlier versions).
`protocol`, `messages` and `results` don't depend on the transport. The transport over HTTP is in `endpoint` and
`own_session`, and the transport over standard input and output is in `stdio`. The server stores nothing for an MCP
client, because each message contains all data for its answer.
"""
