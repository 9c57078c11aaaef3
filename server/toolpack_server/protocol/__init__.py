"""Types of the protocol: parameters, results and names of senders. No code for sessions, stores or transports."""
