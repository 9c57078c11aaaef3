"""The Redis store."""
