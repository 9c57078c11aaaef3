"""Perturbations: rules that inject faults and prompts into the calls of a session's agent."""
