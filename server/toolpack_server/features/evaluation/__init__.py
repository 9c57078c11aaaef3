"""Evaluation of agents: tasks, episodes, participants and perturbations."""
