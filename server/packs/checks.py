"""Checks that run a toolpack's code: its initial environment, and functions that are falsely read-only.

The rule: changes that a check makes are discarded.
"""

from pydantic import BaseModel

from server.errors import InvalidParamsError, RegistrationError, ResultError, SnapshotError
from server.functions_runtime import FunctionsRuntime
from server.jsonio.view import to_json
from server.packs.catalog import Catalog
from server.packs.registration import place
from server.packs.toolpack import Toolpack
from server.snapshots.graph import difference
from server.snapshots.pickling import freeze, thaw


def initial_problem(pack: Toolpack, catalog: Catalog) -> RegistrationError | None:
    """Build the initial environment, and check that its snapshot restores it exactly and that JSON can show it."""
    classes = catalog.classes
    source = place(pack.source)
    if _requires(pack.options):
        return None  # only a session's own options can build it
    try:
        environment = pack.build({})
        lost = difference(environment, thaw(freeze(environment, classes), classes))
        if pack.is_of_classes:
            to_json(environment, catalog.plain)
    except (InvalidParamsError, ResultError, SnapshotError) as error:
        return RegistrationError(f"{source}: the initial environment of {pack.name!r} can't be used: {error}")
    if lost:
        return RegistrationError(f"{source}: the initial environment of {pack.name!r} can't be stored exactly: {lost}")
    return None


def falsely_read_only(catalog: Catalog) -> list[str]:
    """Find functions that promise to be read-only but change the environment; only those without required arguments."""
    found = []
    for pack in catalog.toolpacks.values():
        for function in pack.functions.values():
            if not function.read_only or _requires(function.function.parameters) or _requires(pack.options):
                continue
            environment = pack.build({})
            before = thaw(freeze(environment, catalog.classes), catalog.classes)
            FunctionsRuntime([function.function]).run_function(environment, function.name, {})
            change = difference(before, environment)
            if change:
                found.append(f"{place(function.function)}: it promises read_only=True but changes {change}.")
    return found


def _requires(model: type[BaseModel] | None) -> bool:
    """Whether a model of arguments has a required field."""
    return model is not None and any(field.is_required() for field in model.model_fields.values())
