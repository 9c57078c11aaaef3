"""Toolpacks: registration by authors, loading of modules, and descriptions of functions for agents.

Before the first request, this package finds the problems of a toolpack that can be found without a call. It reports
each problem in one sentence.
"""
