"""Stores that last: SQLite, Postgres, Redis, and blobs outside of them."""
