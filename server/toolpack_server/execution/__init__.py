"""Execution of one call: restores the environments from bytes, runs the function, and encodes the new bytes.

The caller passes in everything that a call needs. So the same code runs in a worker and in an executor process. This
package does no I/O of its own and starts no threads. A call takes effect only when the caller commits its outcome.
"""
