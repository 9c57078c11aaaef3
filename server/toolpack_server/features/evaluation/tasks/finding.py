"""Lookup of tasks in the loaded toolpacks.

All tasks have a fixed order: by toolpack, then by registration. `find_task` and `all_tasks` can run the toolpacks'
loaders, which are author code. So callers must run them in a thread with a deadline.
"""

from collections.abc import Sequence
from typing import cast

from toolpack_server.base.errors import InvalidParamsError, shown
from toolpack_server.features.evaluation.tasks.task import SEPARATOR, Task, TaskAuthor, TaskList
from toolpack_server.packs.catalog import Catalog
from toolpack_server.packs.toolpack import Toolpack


def tasks_of(pack: Toolpack) -> TaskList:
    return cast("TaskAuthor", pack).task_list


def find_task(catalog: Catalog, name: str) -> tuple[Toolpack, Task]:
    """Return a task and its toolpack by the task's full name, `toolpack/task`.

    Raises:
        InvalidParamsError: The task or its toolpack doesn't exist.
        EvaluationError: The toolpack's tasks can't be loaded.
    """
    toolpack, separator, rest = name.partition(SEPARATOR)
    if not separator:
        raise InvalidParamsError(
            f"There is no task {shown(name)!r}: the name of a task begins with its toolpack, as in bank/save-300."
        )
    pack = catalog.toolpacks.get(toolpack)
    if pack is None:
        raise InvalidParamsError(
            f"There is no task {shown(name)!r}: no toolpack {shown(toolpack)!r} is loaded. Add its folder with "
            "--pack-dir, or its name to --packs."
        )
    task = tasks_of(pack).all().get(rest)
    if task is None:
        raise InvalidParamsError(f"There is no task {shown(name)!r}: list_tasks lists all tasks.")
    return pack, task


def all_tasks(catalog: Catalog) -> Sequence[tuple[Toolpack, Task]]:
    """Return all tasks with their toolpacks, in the fixed order.

    Raises:
        EvaluationError: The tasks of a toolpack can't be loaded.
    """
    return [(pack, task) for pack in catalog.toolpacks.values() for task in tasks_of(pack).all().values()]
