"""Strict JSON (RFC 8259): reading, writing, comparing, and the conversion of Python objects."""
