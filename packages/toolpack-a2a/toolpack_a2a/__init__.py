"""Judging of agents that speak A2A with the server's tasks, by a command or as a green agent for AgentBeats."""
