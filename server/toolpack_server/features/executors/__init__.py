"""Toolpacks' code in processes of its own, the *executors*, for `TOOLPACK_ISOLATION=process`.

A worker starts one *zygote*: a fresh interpreter, which imports the toolpacks and from which executors are forked.

    worker:    runner → pool → child → channel      what runs, in which executor, its end, its bytes
    zygote:    zygote                               forks executors, and reports how they exited
    executor:  executor → work → sandbox            one request after the other; what it does; what it can't reach

An executor gets nothing that it could betray: no key, no token, no store, no connection of a client. What
comes back from it is bytes and plain JSON, which are checked and never unpickled.
"""
