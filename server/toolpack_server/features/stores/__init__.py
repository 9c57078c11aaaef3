"""Durable stores in SQLite, Postgres and Redis, and a bucket that can keep the large blobs of any store."""
