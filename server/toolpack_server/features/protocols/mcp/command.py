"""Command `toolpack-server mcp`: MCP on standard input and output, for clients that launch their servers.

The command takes over standard input and output before it loads a toolpack, so that no other code can write to the
client.
"""

import asyncio
import os
import sys
from pathlib import Path

import click

from toolpack_server.base.settings import load_settings
from toolpack_server.cli.options import packs_options
from toolpack_server.features.protocols.mcp.stdio.bridge import carry
from toolpack_server.features.protocols.mcp.stdio.lines import take_standard_streams
from toolpack_server.features.protocols.mcp.stdio.local import converse
from toolpack_server.observability.log import configure_logging
from toolpack_server.packs.loading import catalog_of


@click.command()
@packs_options
@click.option(
    "--url",
    help="A session on a running server: its mcp_path, http://host:port/mcp/<key>. Default: a new session in memory.",
)
def mcp(pack_dir: tuple[Path, ...], packs: str | None, url: str | None) -> None:
    """Serve one MCP client on standard input and output."""
    if url and (pack_dir or packs):
        raise click.UsageError("--url names a session that has its toolpacks already: omit --packs and --pack-dir.")
    source, sink = take_standard_streams()
    settings = load_settings(store="memory:", pack_dir=pack_dir or None, packs=packs)
    configure_logging(settings.log_calls, settings.log_level)
    if url:
        asyncio.run(carry(settings, url, source, sink))
    else:
        catalog = catalog_of(settings)
        asyncio.run(converse(settings, catalog, source, sink))
    sys.stdout.flush()
    os._exit(0)  # don't wait for threads that read standard input or are stuck in a function
