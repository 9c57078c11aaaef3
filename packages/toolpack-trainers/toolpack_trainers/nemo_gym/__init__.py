"""NeMo Gym: its agents use this server as a resources server and play its tasks."""
