"""What surrounds a single function: its signature before the call, and what it returns, raises or leaves behind after.

These modules know neither toolpacks nor sessions. `functions_runtime`, named like AgentDojo's
module, runs the functions themselves.
"""
