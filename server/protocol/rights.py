"""Who sends a request: a client, the agent, or another participant of a session.

The rule: names only. What each may do is for features to say.
"""

from collections.abc import Mapping
from typing import Any

AGENT = "agent"
CLIENT = "client"  # stands for whoever sends requests to `/rpc`, which is no participant
PARTICIPANTS = "participants"  # what a session keeps of its request by this name: rights, by participant

Participants = Mapping[str, Mapping[str, Any]]
"""Rights by the name of the participant."""
