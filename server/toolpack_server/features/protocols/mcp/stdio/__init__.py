"""MCP on standard input and output, for clients that launch their servers.

A process serves one client and one session. Text that functions print is written to standard error, so that the client
receives only MCP messages.
"""
