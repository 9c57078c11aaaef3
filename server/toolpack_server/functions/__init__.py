"""What surrounds a single function: its signature before the call, and what it returns, raises or leaves behind after.

The rule: these modules know neither toolpacks nor sessions. `toolpack_server.functions_runtime`, which stays where AgentDojo's
programs import it by that name, runs the functions themselves.
"""
