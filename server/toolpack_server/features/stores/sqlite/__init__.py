"""Session store in one SQLite file."""
