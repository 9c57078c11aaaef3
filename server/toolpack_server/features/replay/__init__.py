"""Replay: a session's records run again, and bundles, which carry a session from one server to another."""
