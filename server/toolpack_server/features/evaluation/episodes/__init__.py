"""Episodes: the messages of a session, the rights of its participants, and their progress (calls used, end)."""
