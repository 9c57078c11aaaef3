"""Processes: the listening socket, the workers, and the supervisor that keeps them alive.

Nothing here knows about sessions, and what forks others runs no toolpack code. A worker is a process that
loads the toolpacks and runs the web application.
"""
