"""Names of the senders of requests. Features add the names of participants and define what each sender may do."""

AGENT = "agent"  # at a session's own address
CLIENT = "client"  # at `/rpc`
WORLD = "world"  # no request: a world that moves by itself
