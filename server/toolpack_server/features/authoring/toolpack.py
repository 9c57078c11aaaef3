"""The `Toolpack` class for authors: the core class plus the methods that features add.

No other module of the server imports this module, because the core doesn't depend on features.
"""

from toolpack_server.features.authoring.classes.toolpack import ClassToolpacks
from toolpack_server.features.evaluation.events.authors import EventAuthor
from toolpack_server.features.evaluation.tasks.task import TaskAuthor
from toolpack_server.packs.toolpack import Toolpack as CoreToolpack


class Toolpack(TaskAuthor, EventAuthor, ClassToolpacks, CoreToolpack):
    """A toolpack with the methods of all features that authors use: functions, tasks, events and classes."""

    __doc__ = CoreToolpack.__doc__
