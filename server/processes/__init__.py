"""Processes: the listening socket, the workers, and the supervisor that keeps them alive.

The rule: nothing here loads toolpacks or knows about sessions; a worker is a process that runs the web application.
"""
