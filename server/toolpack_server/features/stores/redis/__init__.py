"""Session store in Redis."""
