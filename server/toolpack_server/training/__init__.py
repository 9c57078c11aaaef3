"""What programs that train and evaluate agents make of the client: environments of tasks, and groups of rollouts.

All of it is done with the client's methods, so it works with any server.
"""

from toolpack_server.training.rollouts import RolloutResult, Tree, rollouts

__all__ = ["RolloutResult", "Tree", "rollouts"]
