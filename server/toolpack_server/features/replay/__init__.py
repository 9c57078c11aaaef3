"""Replay of a session's records, seeded sessions, and bundles.

A seeded session has a fixed clock and fixed random numbers, so a replay of the session returns the same results. A
bundle is a file that moves a session to another server.
"""
