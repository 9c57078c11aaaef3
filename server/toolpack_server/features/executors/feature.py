"""Declaration of the feature `executors`."""

from toolpack_server.features.executors.metrics import METRICS
from toolpack_server.features.executors.requirements import check_isolation, protect
from toolpack_server.features.executors.settings import ExecutorsSettings
from toolpack_server.wiring.feature import Feature


class ExecutorsFeature(Feature):
    name = "executors"
    settings = ExecutorsSettings
    metrics = METRICS
    checks = (check_isolation,)
    before_serving = (protect,)
    isolations = {"process": "toolpack_server.features.executors.runner:start_executors"}
