"""Receipts: signed files with the sessions behind a score, which others can run again."""
