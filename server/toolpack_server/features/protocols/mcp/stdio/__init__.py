"""MCP on standard input and output, for clients that launch their servers.

One process is one client and one session. Only messages of MCP go to the client's end of standard output,
whatever functions print.
"""
