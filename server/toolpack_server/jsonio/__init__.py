"""Strict JSON (RFC 8259): reading, writing and comparing JSON, and conversion of Python objects to JSON."""
