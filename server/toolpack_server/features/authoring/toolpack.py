"""The `Toolpack` of authors: the core's, with what features add to it.

No other module of the server imports it, as the core knows no feature.
"""

from toolpack_server.features.authoring.classes.toolpack import ClassToolpacks
from toolpack_server.features.evaluation.tasks.task import TaskAuthor
from toolpack_server.packs.toolpack import Toolpack as CoreToolpack


class Toolpack(TaskAuthor, ClassToolpacks, CoreToolpack):
    __doc__ = CoreToolpack.__doc__
