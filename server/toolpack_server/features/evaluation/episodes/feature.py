"""Declaration of the feature `episodes`."""

from toolpack_server.features.evaluation.episodes.messages import MessageKind
from toolpack_server.features.evaluation.episodes.progress import Episodes
from toolpack_server.wiring.feature import Feature


class EpisodesFeature(Feature):
    name = "episodes"
    record_kinds = (MessageKind,)
    operation_hooks = (Episodes,)
