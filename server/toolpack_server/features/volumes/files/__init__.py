"""Trees of files in environments."""
