"""Processes of the server: the supervisor, the workers that it keeps running, and the listening socket.

The supervisor forks the workers, and replaces them when they fail. A worker loads the toolpacks and runs the web
application. A process that forks workers runs no toolpack code, because toolpacks might start threads, and a fork
doesn't copy threads. This package doesn't depend on sessions.
"""
