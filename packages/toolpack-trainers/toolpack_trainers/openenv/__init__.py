"""OpenEnv: its clients play the server's tasks, unchanged."""
