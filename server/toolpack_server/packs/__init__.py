"""Toolpacks: registration by authors, loading of modules, and descriptions of functions for agents.

This package finds every problem with a toolpack before the first request, and reports each in one sentence.
"""
