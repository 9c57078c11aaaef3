"""Read and write strict JSON, and convert Python objects to JSON.

The rule: only RFC 8259 is read and written.
"""
