"""Tasks and what happens in them: episodes, participants, perturbations, verdicts."""
