"""Names of the senders of requests. Features add the names of participants, and decide what each sender can do."""

AGENT = "agent"  # sends requests to a session's own address
CLIENT = "client"  # sends requests to `/rpc`
WORLD = "world"  # makes calls without a request, in a world that moves by itself
