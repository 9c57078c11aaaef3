"""Read and write strict JSON, and convert Python objects to JSON.

Only RFC 8259 is read and written.
"""
