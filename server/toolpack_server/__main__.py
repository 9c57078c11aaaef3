"""`python -m toolpack_server` is `toolpack-server`."""

from toolpack_server.cli import main

main()
