"""Toolpacks: what an author registers, how modules are loaded, how functions are described to agents.

Every problem with a toolpack is found here, before the first request, and reported in one sentence.
"""
