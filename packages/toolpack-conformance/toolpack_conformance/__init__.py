"""The command `conform`, which checks through a server's URL whether it keeps the protocol's guarantees."""
