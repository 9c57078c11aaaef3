"""Generator and checker of the JSON Schemas, the OpenRPC document and the client's methods.

    python -m tools.schemas [--check]

The server's code is the source of these files. Don't edit them.
"""

import json
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter

from toolpack_server.packs.formats import native
from toolpack_server.packs.loading import load_catalog
from toolpack_server.packs.toolpack import Toolpack
from toolpack_server.protocol.results import Envelope
from toolpack_server.wiring.installed import load_features
from toolpack_server.wiring.service import all_methods, openrpc
from tools.client_code import client_code

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BUNDLED = ("bank", "workspace")  # toolpacks with schemas in the repository, because they need no optional package
ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "server" / "toolpack_server" / "client" / "methods.py"


@click.command()
@click.option("--check", "only_check", is_flag=True, help="Fail if the files differ from the code; write nothing.")
@click.option("--directory", type=Path, default=ROOT / "schemas", help="Folder of the files.")
def schemas(only_check: bool, directory: Path) -> None:
    """Write the JSON Schemas, the OpenRPC document and the client's methods, or check them."""
    packs = load_catalog((), BUNDLED).toolpacks.values()
    features = [each for each in load_features([]) if each.__module__.startswith("toolpack_server.")]
    methods = all_methods(features)
    texts = {"openrpc.json": _json(openrpc(methods, features)), "envelope.json": _json(_envelope_schema())}
    texts |= {f"toolpacks/{pack.name}.json": _json(_toolpack_schema(pack)) for pack in packs}
    paths = {directory / name: (name, text) for name, text in texts.items()}
    paths[CLIENT] = "client/methods.py", client_code(methods)
    changed = []
    for path, (name, text) in paths.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        changed.append(name)
        if not only_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if only_check and changed:
        raise click.ClickException(f"{', '.join(changed)} drifted from the code: run `python -m tools.schemas`.")
    click.echo(f"{len(paths)} files, {len(changed)} {'drifted' if only_check else 'written'}.")


def _envelope_schema() -> dict[str, Any]:
    return {"$schema": DIALECT, **TypeAdapter(Envelope).json_schema()}


def _toolpack_schema(toolpack: Toolpack) -> dict[str, Any]:
    options = toolpack.options
    return {
        "toolpack": toolpack.name,
        "opt_in": toolpack.opt_in,
        "options": options.model_json_schema() if options else None,
        "environment": toolpack.environment_class.model_json_schema(mode="serialization"),
        "functions": [native(function) for function in toolpack.functions.values()],
    }


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    schemas()
