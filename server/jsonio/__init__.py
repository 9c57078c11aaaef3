"""JSON: strict reading and writing, JSON as a view of Python objects, and the way back.

The rule: nothing but RFC 8259 comes in or goes out.
"""
