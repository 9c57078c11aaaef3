"""Environments for trainers: one rollout of a task at a time."""

from server.client.environments import Environment, submit_answers
from server.client.text_environments import TextEnvironment

__all__ = ["Environment", "TextEnvironment", "submit_answers"]
