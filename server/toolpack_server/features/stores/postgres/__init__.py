"""Session store in Postgres."""
