"""JSON-RPC 2.0: from the bytes of a request to a method of the sessions and back.

The rule: nothing here knows about HTTP.
"""

import warnings

with warnings.catch_warnings():
    # Python 3.11 and 3.12 deprecate the function with which jsonrpcserver reads its schema; later versions don't.
    warnings.filterwarnings("ignore", r"(open|read)_text is deprecated", DeprecationWarning)
    import jsonrpcserver  # noqa: F401 - imported here so that its warning is suppressed in one place
