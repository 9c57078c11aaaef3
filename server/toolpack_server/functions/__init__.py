"""Helpers around a single function: its signature, its arguments, its coroutine, its result and its leftover threads.

These modules know neither toolpacks nor sessions. `functions_runtime`, which has the name of AgentDojo's module, runs
the functions themselves.
"""
