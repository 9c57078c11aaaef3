"""NeMo Gym: this server is a resources server, at which its agents play tasks."""
