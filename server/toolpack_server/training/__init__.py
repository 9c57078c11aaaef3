"""Helpers for programs that train and evaluate agents: environments for tasks, and groups of rollouts.

The helpers use only the client's methods, so they work with any server of this project, local or remote.
"""

from toolpack_server.training.rollouts import RolloutResult, Tree, rollouts

__all__ = ["RolloutResult", "Tree", "rollouts"]
