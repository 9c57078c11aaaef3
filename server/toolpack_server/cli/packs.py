"""The command `toolpack-server list`, which lists toolpacks. Like `serve`, it stops at the first problem."""

import asyncio
from pathlib import Path
from typing import Any

import click

from toolpack_server.base.settings import load_settings
from toolpack_server.base.terminal import echo
from toolpack_server.cli.options import packs_options, server_options
from toolpack_server.cli.requests import Send, remote
from toolpack_server.packs.formats import native
from toolpack_server.packs.loading import catalog_of


@click.command("list")
@packs_options
@server_options("Server whose toolpacks to show, like http://127.0.0.1:8000.  [default: the local toolpacks]")
def list_toolpacks(pack_dir: tuple[Path, ...], packs: str | None, url: str | None, token: str | None) -> None:
    """Show toolpacks, where they come from, and their functions."""
    if url:
        asyncio.run(_list_remote(remote(url, token)))
        return
    settings = load_settings(pack_dir=pack_dir or None, packs=packs)
    catalog = catalog_of(settings)
    for pack in catalog.toolpacks.values():
        source = str(catalog.sources.get(pack.name, ""))  # the toolpack `world` is a part of the server
        _show(pack.name, [*map(native, pack.functions.values())], source, opt_in=pack.opt_in)
    for notice in catalog.notices:
        echo(f"note: {notice}")


async def _list_remote(send: Send) -> None:
    listed = (await send("list_functions", {}))["result"]
    for pack in await send("list_toolpacks", {}):
        source = f"{pack['distribution']} {pack['version']}" if "distribution" in pack else ""
        functions = [each for each in listed if each["toolpack"] == pack["name"]]
        _show(pack["name"], functions, source, opt_in=pack["opt_in"])


def _show(toolpack: str, functions: list[dict[str, Any]], source: str, *, opt_in: bool) -> None:
    """Print a toolpack, and a line for each of its functions. `source` says where the toolpack comes from, or is ""."""
    remarks = ", ".join(filter(None, [source, "opt-in" if opt_in else ""]))
    echo(f"{toolpack} ({remarks})" if remarks else toolpack)
    for function in functions:
        parameters = ", ".join(function["parameters"].get("properties", {}))
        summary = function["description"].partition("\n")[0]
        echo(f"  {function['name']}({parameters}){' [read-only]' if function['read_only'] else ''}: {summary}")
