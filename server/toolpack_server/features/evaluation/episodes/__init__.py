"""Episodes: what is said in sessions, what their addresses may do, and how much of that they have done."""
