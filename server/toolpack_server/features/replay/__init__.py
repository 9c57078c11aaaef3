"""Replay of a session's records, seeded sessions, and bundles.

A seeded session has a fixed clock and fixed random numbers, so that a replay of it gives the same results. A bundle is
a file that moves a session to another server.
"""
