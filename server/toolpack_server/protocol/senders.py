"""Who sends a request: a client, or whoever has an address of a session, such as its agent.

Names only. What each may do is for features to say.
"""

AGENT = "agent"
CLIENT = "client"  # stands for whoever sends requests to `/rpc`, which is no address
