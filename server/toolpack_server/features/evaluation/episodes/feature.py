"""What the feature `episodes` adds to the server."""

from toolpack_server.features.api.core import Feature
from toolpack_server.features.evaluation.episodes.messages import MessageKind
from toolpack_server.features.evaluation.episodes.progress import Episodes


class EpisodesFeature(Feature):
    name = "episodes"
    record_kinds = (MessageKind,)
    operation_hooks = (Episodes,)
