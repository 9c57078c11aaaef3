"""OpenEnv: whoever trains with its clients plays tasks here, unchanged."""
