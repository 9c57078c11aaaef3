"""Helpers for a single function: its signature, arguments, coroutine and result, and the threads that it leaves.

These modules don't depend on toolpacks or sessions. The functions themselves are run by `functions_runtime`, which is
named after AgentDojo's module.
"""
