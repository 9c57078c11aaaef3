"""Events: changes that a session's world makes by itself, in simulated time, as rules say."""
