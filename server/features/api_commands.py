"""What a command of another distribution may import besides `api`; it is imported in a moment.

The rule: nothing is defined here.
"""

from server.base.terminal import echo
from server.cli.local import opened_store
from server.cli.look import label
from server.cli.options import packs_options, server_options
from server.features.progress import progress
from server.packs.rebinding import function_tree

__all__ = ["echo", "function_tree", "label", "opened_store", "packs_options", "progress", "server_options"]
