"""Participants: parties with different roles in one session. Each has its own address, and they exchange messages."""
