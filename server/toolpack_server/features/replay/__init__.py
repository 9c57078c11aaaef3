"""Replay of a session's records, seeded sessions, and bundles, which move a session to another server."""
