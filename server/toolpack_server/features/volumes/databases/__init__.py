"""SQLite databases in environments."""
