"""What surrounds a single function: its signature before the call, and what it returns, raises or leaves behind after.

The rule: these modules know neither toolpacks nor sessions. `functions_runtime`, named like AgentDojo's
module, runs the functions themselves.
"""
