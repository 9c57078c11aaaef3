"""What the feature `episodes` adds to the server."""

from server.features.api import Feature
from server.features.episodes.messages import MessageKind
from server.features.episodes.progress import Episodes


class EpisodesFeature(Feature):
    name = "episodes"
    record_kinds = (MessageKind,)
    operation_hooks = (Episodes,)
