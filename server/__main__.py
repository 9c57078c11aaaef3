"""`python -m server` is `toolpack-server`."""

from server.cli import main

main()
