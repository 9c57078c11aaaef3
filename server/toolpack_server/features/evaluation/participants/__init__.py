"""Participants: several roles in one session, each with its own address, which exchange messages."""
