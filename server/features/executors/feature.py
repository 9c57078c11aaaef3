"""What executors add to the server."""

from server.features.api import Feature
from server.features.executors.requirements import check_isolation, protect


class ExecutorsFeature(Feature):
    name = "executors"
    checks = (check_isolation,)
    before_serving = (protect,)
    isolations = {"process": "server.features.executors.runner:start_executors"}
