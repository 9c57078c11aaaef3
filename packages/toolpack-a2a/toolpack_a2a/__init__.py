"""A2A: judges agents of this protocol with the server's tasks, as a command or as a green agent of AgentBeats."""
