"""What everything else stands on: errors, settings, and small things without a place of their own.

Nothing here imports another part of the server.
"""
