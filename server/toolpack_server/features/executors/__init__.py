"""Process isolation: toolpacks' code runs in separate processes, the *executors* (`TOOLPACK_ISOLATION=process`).

A function that crashes then ends only its own process, and not the worker. Each worker of the server starts one
*zygote*, a fork server: a fresh interpreter that imports the toolpacks and forks the executors.

    process    module       content
    worker     runner       runs an operation in an executor
               pool         assigns executors to operations, and starts and stops them
               child        the zygote and one executor, as the worker sees them
               channel      the socket to one executor, with its frames (JSON and bytes)
               transport    the requests and answers of operations
               calls        the requests and answers of calls, and the executor's cache of environments
    zygote     zygote       forks executors and reports their exit statuses
    executor   executor     reads requests in a loop
               work         handles one request
               sandbox      blocks files, network and system calls, if configured

An executor receives no secrets: no key, no token, and no access to the store or to client connections. It answers with
bytes and plain JSON, which the worker checks and never unpickles.
"""
