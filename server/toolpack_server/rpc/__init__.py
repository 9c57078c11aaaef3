"""JSON-RPC 2.0: parsing requests, dispatching them to methods, and writing the responses.

This package doesn't depend on HTTP.
"""
