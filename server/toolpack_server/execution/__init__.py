"""One call: from an environment as bytes and a function call to an outcome and the next bytes.

No I/O and no thread. What a call needs is handed in, and nothing has happened until somebody commits its
outcome.
"""
