"""Events: changes that a session's world makes by itself, by rules and in simulated time."""
