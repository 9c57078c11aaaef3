"""Helpers around a single function: its signature, arguments, coroutine and result, and the threads that it leaves.

These modules don't depend on toolpacks or sessions. `functions_runtime`, which has the name of AgentDojo's module, runs
the functions themselves.
"""
