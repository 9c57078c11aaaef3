"""Processes: the listening socket, the workers, and the supervisor that keeps them alive.

The rule: loads no toolpack and knows no session; a worker is the web application in a process of its own.
"""
