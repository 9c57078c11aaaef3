"""Toolpacks: registration by authors, loading of modules, and descriptions of functions for agents.

Before the first request, this package finds the problems with a toolpack that show without a call. It reports each in
one sentence.
"""
