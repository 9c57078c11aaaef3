"""The Open Reward Standard (ORS): whoever trains with its clients plays tasks here, unchanged."""
