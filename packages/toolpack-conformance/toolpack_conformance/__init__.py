"""`conform`: does a server keep the guarantees? Asked from outside, through its URL alone."""
