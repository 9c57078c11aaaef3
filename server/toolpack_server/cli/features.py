"""The command `toolpack-server features`, which lists the installed features as `GET /openrpc.json` does."""

import click

from toolpack_server.base.terminal import echo
from toolpack_server.wiring.installed import describe_features, load_features


@click.command()
def features() -> None:
    """List the installed features, where each comes from, and what it adds."""
    for feature in describe_features(load_features()):
        name, distribution, version = (feature.pop(key) for key in ("name", "distribution", "version"))
        echo(f"{name} ({distribution} {version})")
        for kind, names in feature.items():
            echo(f"  {kind.replace('_', ' ')}: {', '.join(names)}")
