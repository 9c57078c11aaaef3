"""Participants: several roles in one session, each with an address of its own, which talk with each other."""
