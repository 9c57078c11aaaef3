"""Foundations without imports from the rest of the server: errors, settings, the secret key, small helpers."""
