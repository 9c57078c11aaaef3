"""Process isolation: toolpacks' code runs in worker processes, the *executors* (`TOOLPACK_ISOLATION=process`).

A worker of the server starts one *zygote*, a fork server: a fresh interpreter that imports the toolpacks and forks the
executors.

    worker:    runner → pool → child → channel      runs operations; assigns executors; one executor; its frames
    zygote:    zygote                               forks executors and reports their exit statuses
    executor:  executor → work → sandbox            request loop; request handler; resource limits

An executor gets no secrets: no key, no token, no store and no client connection. It answers with bytes and plain JSON,
which the worker checks and never unpickles.
"""
