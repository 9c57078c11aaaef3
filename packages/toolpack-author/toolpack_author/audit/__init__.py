"""Audit of tasks: it tries to pass them without doing them, and finds checks that never fail."""
