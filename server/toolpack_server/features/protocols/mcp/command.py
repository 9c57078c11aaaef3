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
from toolpack_server.cli.options import packs_options, server_options
from toolpack_server.cli.requests import check_token
from toolpack_server.features.protocols.mcp.stdio.bridge import carry
from toolpack_server.features.protocols.mcp.stdio.lines import take_standard_streams
from toolpack_server.features.protocols.mcp.stdio.local import converse
from toolpack_server.observability.log import configure_logging
from toolpack_server.packs.loading import catalog_of


@click.command()
@packs_options
@click.option("--task", help="A task for the session, as toolpack/name.")
@click.option("--seed", help="A seed for the session.")
@server_options(
    "A session on a running server: http://host:port/mcp?session=NAME, or its mcp_path, http://host:port/mcp/<key>. "
    "Default: a new session in memory.",
)
def mcp(
    pack_dir: tuple[Path, ...],
    packs: str | None,
    task: str | None,
    seed: str | None,
    url: str | None,
    token: str | None,
) -> None:
    """Serve one MCP client on standard input and output."""
    if url and (pack_dir or packs or task or seed):
        raise click.UsageError(
            "--url names a session that has its toolpacks already: omit --packs, --pack-dir, --task and --seed. The "
            "address may have packs, task and seed, as in http://host:port/mcp?task=bank/save-300&session=NAME."
        )
    check_token(token)
    source, sink = take_standard_streams()
    isolation = "process" if seed else None  # seeded sessions can run only in executors
    settings = load_settings(store="memory:", pack_dir=pack_dir or None, packs=packs, isolation=isolation)
    configure_logging(settings.log_calls, settings.log_level)
    if url:
        asyncio.run(carry(settings, url, token, source, sink))
    else:
        catalog = catalog_of(settings)
        options = {"task": task, "seed": seed}
        asyncio.run(
            converse(settings, catalog, {name: value for name, value in options.items() if value}, source, sink)
        )
    sys.stdout.flush()
    os._exit(0)  # exit without waiting for threads that read standard input or are stuck in a function
