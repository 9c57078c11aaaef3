"""Further public names for features that add commands.

This module only re-exports names, and imports nothing slow. It is imported at every start of the command line, so a
slow import would delay all commands.
"""

from toolpack_server.base.terminal import echo
from toolpack_server.cli.local import ask_in_memory, opened_store
from toolpack_server.cli.options import packs_options, server_options
from toolpack_server.cli.progress import progress
from toolpack_server.cli.requests import Send
from toolpack_server.cli.session_commands import label
from toolpack_server.packs.rebinding import function_tree

__all__ = [
    "Send",
    "ask_in_memory",
    "echo",
    "function_tree",
    "label",
    "opened_store",
    "packs_options",
    "progress",
    "server_options",
]
