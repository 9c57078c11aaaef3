"""Perturbations: fault injection and prompt injection into the calls of a session's agent, by rules."""
