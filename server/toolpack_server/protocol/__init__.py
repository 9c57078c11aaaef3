"""The words of the protocol that several parts share: parameters, the shapes of results, who sends a request.

These are types and checks; nothing here knows a session, a store or a transport.
"""
