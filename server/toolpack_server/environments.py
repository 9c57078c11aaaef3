"""Public names of training environments: a task as an object for a trainer, which plays one rollout at a time."""

from toolpack_server.training.environments import TrainingEnvironment, submit_answers
from toolpack_server.training.text_environments import TextEnvironment

__all__ = ["TextEnvironment", "TrainingEnvironment", "submit_answers"]
