"""Work in a process that ends with it, so that whatever it leaves behind in a process is gone.

Native libraries start threads when they are imported or used, and a fork copies none of them: a process that is forked
after that may wait for them for ever. What forks workers runs no toolpack code; what it wants to know of
toolpacks it asks such a process.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from toolpack_server.base.errors import RegistrationError, StartError
from toolpack_server.base.settings import Settings
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.inventory import Inventory
from toolpack_server.packs.loading import catalog_of
from toolpack_server.processes.child import Child, follow, handle_stop


class Loaded(NamedTuple):
    inventory: Inventory
    catalog: Catalog | None  # None if workers load the toolpacks themselves


def load(settings: Settings) -> Loaded:
    """Find out which toolpacks there are, and check them: in this process only if it will be the one that serves.

    Raises:
        RegistrationError: The first problem of the toolpacks.
        StartError: Loading them has ended the process.
    """
    if not settings.store_url.persistent:
        catalog = catalog_of(settings)
        return Loaded(catalog.inventory(), catalog)

    def find() -> Any:
        try:
            return {"inventory": catalog_of(settings).inventory().to_json()}
        except RegistrationError as error:
            return {"problem": str(error)}

    found = run_isolated(find)
    if "problem" in found:
        raise RegistrationError(found["problem"])
    return Loaded(Inventory.from_json(found["inventory"]), None)


def run_isolated(work: Callable[[], Any]) -> Any:
    """Work with toolpacks in a process of its own, and get what that returns, plain JSON.

    Raises:
        StartError: The process has ended before.
    """
    parent = os.getpid()

    def run(pipe: Connection) -> int:
        handle_stop(signal.SIG_DFL)
        follow(parent)
        try:
            pipe.send_bytes(json.dumps(work()).encode())
        except Exception:  # noqa: BLE001 - the process ends here
            sys.excepthook(*sys.exc_info())
            return 1
        return 0

    child = Child(run)
    try:
        return json.loads(child.pipe.recv_bytes())
    except EOFError:
        raise StartError(
            f"The process in which the toolpacks are loaded and checked has ended ({child.wait()})."
        ) from None
    finally:
        child.end()
