"""What executors add to the server."""

from server.features.api import Feature
from server.features.executors.metrics import METRICS
from server.features.executors.requirements import check_isolation, protect
from server.features.executors.settings import ExecutorsSettings


class ExecutorsFeature(Feature):
    name = "executors"
    settings = ExecutorsSettings
    metrics = METRICS
    checks = (check_isolation,)
    before_serving = (protect,)
    isolations = {"process": "server.features.executors.runner:start_executors"}
