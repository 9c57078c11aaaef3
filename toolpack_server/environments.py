"""Environments for trainers: one rollout of a task at a time."""

from server.client.environments import TrainingEnvironment, submit_answers
from server.client.text_environments import TextEnvironment

__all__ = ["TextEnvironment", "TrainingEnvironment", "submit_answers"]
