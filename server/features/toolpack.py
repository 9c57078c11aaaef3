"""The `Toolpack` of authors: the core's, with what features add to it.

The rule: no other module of the server imports it, as the core knows no feature.
"""

from server.features.classes.toolpack import ClassToolpacks
from server.features.mcp.marks import HeaderMarks
from server.features.tasks.task import TaskAuthor
from server.packs.toolpack import Toolpack as CoreToolpack


class Toolpack(TaskAuthor, ClassToolpacks, HeaderMarks, CoreToolpack):
    __doc__ = CoreToolpack.__doc__
