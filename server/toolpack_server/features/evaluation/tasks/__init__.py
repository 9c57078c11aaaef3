"""Tasks for agents: methods and commands to list them, create their sessions, submit answers and evaluate sessions."""
