"""MCP on standard input and output, for clients that launch their servers.

A process serves one client and one session. Output that functions print goes to standard error, so the client
receives MCP messages only.
"""
