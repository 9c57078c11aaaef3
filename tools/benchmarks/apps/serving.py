"""Uvicorn for the other contenders, with the same options as in Toolpack Server."""

import sys

import uvicorn


def serve(app, ws="none"):
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        access_log=False,
        log_level="error",
        ws=ws,
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
