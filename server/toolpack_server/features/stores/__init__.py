"""Durable stores (SQLite, Postgres, Redis), and storage of large blobs outside them."""
