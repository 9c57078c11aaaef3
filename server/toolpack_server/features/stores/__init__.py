"""Durable stores in SQLite, Postgres and Redis, and a bucket for large blobs of any store."""
