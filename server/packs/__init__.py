"""Toolpacks: what an author registers, how modules are loaded, how functions are described to agents.

The rule: whatever is wrong with a toolpack is found here, before the first request, and said in one sentence.
"""
