"""Trial calls for the command `check`, which find mistakes by running toolpacks' code.

The calls have no lasting effect: functions run in a separate process, on throw-away environments.
"""
