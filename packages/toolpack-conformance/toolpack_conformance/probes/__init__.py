"""Probes of a server, by guarantee.

The docstring of a probe is the sentence that the server must keep; the report prints it. Each probe creates its own
sessions, so a failure doesn't affect other probes.
"""
