"""Environments for trainers: one rollout of a task at a time."""

from toolpack_server.training.environments import TrainingEnvironment, submit_answers
from toolpack_server.training.text_environments import TextEnvironment

__all__ = ["TextEnvironment", "TrainingEnvironment", "submit_answers"]
