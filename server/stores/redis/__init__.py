"""Sessions in Redis."""
