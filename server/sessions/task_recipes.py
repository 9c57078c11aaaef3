"""What a task says about the session that is created for it.

The rule: pure; what a client gives counts more than what the task says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from server.packs.catalog import Catalog


def task_recipe(
    catalog: Catalog,
    name: str,
    toolpacks: Sequence[str] | None,
    options: Mapping[str, Mapping[str, Any]],
    environment: Mapping[str, Any],
) -> tuple[list[str], dict[str, Mapping[str, Any]]]:
    """Get the toolpacks and the options of a new session with a task.

    Args:
        catalog: The loaded toolpacks.
        name: The task.
        toolpacks: Further toolpacks.
        options: Options that count more than those of the task.
        environment: The environments that are given; options of the task for these toolpacks don't matter.

    Raises:
        InvalidParamsError: There is no such task.
    """
    pack, task = catalog.task(name)
    own = {pack.name: task.options, **task.toolpacks}
    given = {toolpack: {**task_options} for toolpack, task_options in own.items() if toolpack not in environment}
    for toolpack, more in options.items():
        given[toolpack] = {**given.get(toolpack, {}), **more}
    merged: dict[str, Mapping[str, Any]] = {toolpack: found for toolpack, found in given.items() if found}
    return [*own, *(toolpacks or ())], merged
