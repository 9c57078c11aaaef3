"""`toolpack-server schemas`: writes the JSON Schemas and the OpenRPC document, or checks them.

The rule: files are generated from the code, never edited.
"""

import json
from pathlib import Path
from typing import Any

import click

from server.jsonio.strict import dumps
from server.packs.catalog import Catalog
from server.packs.loading import load_catalog
from server.rpc.openrpc import envelope_schema, toolpack_schema
from server.service import Service
from server.settings import load_settings

BUNDLED = ("bank", "workspace")  # their schemas are in the repository: these toolpacks need no optional package


@click.command()
@click.option("--check", "only_check", is_flag=True, help="Fail if the files differ from the code; write nothing.")
@click.option("--directory", type=Path, default=Path("schemas"), show_default=True, help="Where the files are.")
def schemas(only_check: bool, directory: Path) -> None:
    """Write the JSON Schemas and the OpenRPC document, or check them."""
    catalog = load_catalog((), BUNDLED)
    wanted = {"openrpc.json": _openrpc(catalog), "envelope.json": envelope_schema()}
    wanted |= {f"toolpacks/{pack.name}.json": toolpack_schema(pack) for pack in catalog.toolpacks.values()}
    drifted = []
    for name, document in wanted.items():
        path, text = directory / name, json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        drifted.append(name)
        if not only_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if only_check and drifted:
        raise click.ClickException(f"{', '.join(drifted)} drifted from the code: run `toolpack-server schemas`.")
    click.echo(f"{len(wanted)} files, {len(drifted)} {'drifted' if only_check else 'written'}.")


def _openrpc(catalog: Catalog) -> Any:
    return json.loads(dumps(Service(load_settings(store="memory:", isolation="thread"), catalog).document()))
