"""Isolated calls, which run in a short-lived process, so that their side effects end with the process.

Some native libraries start threads when they are imported or used. A fork doesn't copy threads, so a process that is
forked afterwards might wait for these threads forever. Therefore, a process that forks workers runs no toolpack code,
and loads and checks the toolpacks in an isolated call.
"""

import json
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from toolpack_server.base.errors import RegistrationError, StartError
from toolpack_server.base.settings import Settings
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.inventory import Inventory
from toolpack_server.packs.loading import catalog_of
from toolpack_server.processes.child import Child, set_up_child


class Loaded(NamedTuple):
    """The result of `load`: a description of the toolpacks, and the toolpacks themselves if this process will serve."""

    inventory: Inventory
    catalog: Catalog | None  # None if workers load the toolpacks themselves


def load(settings: Settings) -> Loaded:
    """Load and check the toolpacks.

    Without a persistent store, this process itself will serve, so it loads the toolpacks here. With one, this process
    will fork workers, so it loads the toolpacks in an isolated call.

    Raises:
        RegistrationError: A toolpack can't be used. The message describes the first problem.
        StartError: The isolated process exited while it loaded the toolpacks.
    """
    if not settings.store_url.persistent:
        catalog = catalog_of(settings)
        return Loaded(catalog.inventory(), catalog)

    def load_inventory() -> Any:
        try:
            return {"inventory": catalog_of(settings).inventory().to_json()}
        except RegistrationError as error:
            return {"problem": str(error)}

    result = run_isolated(load_inventory)
    if "problem" in result:
        raise RegistrationError(result["problem"])
    return Loaded(Inventory.from_json(result["inventory"]), None)


def run_isolated(work: Callable[[], Any]) -> Any:
    """Run `work` in a new process, and return its result, which must be plain JSON.

    Raises:
        StartError: The process exited without a result.
    """
    parent = os.getpid()

    def run(pipe: Connection) -> int:
        set_up_child(parent, own_group=False)
        try:
            pipe.send_bytes(json.dumps(work()).encode())
        except Exception:  # noqa: BLE001 - the process exits here
            sys.excepthook(*sys.exc_info())
            return 1
        return 0

    child = Child(run)
    try:
        return json.loads(child.pipe.recv_bytes())
    except EOFError:
        raise StartError(
            f"The process that loads and checks the toolpacks ended before it was done ({child.wait()})."
        ) from None
    finally:
        child.end()
