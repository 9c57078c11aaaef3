"""Execution of one call: decodes the environments from bytes, runs the function, and encodes the changed environments.

The caller passes in everything that a call needs, so the same code runs in a worker and in an executor process. This
package does no I/O of its own and starts no threads. A call takes effect only when the caller commits its outcome.
"""
