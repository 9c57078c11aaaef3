"""Receipts: the sessions behind a score, signed, so that anybody can run them again."""
