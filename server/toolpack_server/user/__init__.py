"""The simulated user: a program that plays a participant of many sessions, with a model or by a script.

It knows of a session what the record says, and keeps nothing. No part of the server imports it.
"""
