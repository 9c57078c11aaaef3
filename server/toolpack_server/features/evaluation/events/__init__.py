"""Events: worlds that move by themselves, in a time of their own, by rules."""
