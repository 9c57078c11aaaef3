"""The Open Reward Standard (ORS): its clients play the server's tasks, unchanged."""
