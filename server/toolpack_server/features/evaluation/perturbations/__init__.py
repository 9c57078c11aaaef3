"""Perturbations of sessions: faults and injections that agents meet, by rules."""
