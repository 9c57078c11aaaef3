"""Processes of the server: the supervisor, the workers that it keeps running, and the listening socket.

A worker loads the toolpacks and runs the web application. This package doesn't depend on sessions, and a process that
forks others runs no toolpack code.
"""
