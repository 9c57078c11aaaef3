"""Processes of the server: the supervisor, the workers that it keeps running, and the listening socket.

The supervisor forks the workers and replaces them. A worker loads the toolpacks and runs the web application. A process
that forks others runs no toolpack code, because toolpacks may start threads, which a fork doesn't copy. This package
doesn't depend on sessions.
"""
