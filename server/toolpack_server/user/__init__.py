"""The simulated user: a program that plays a participant of many sessions, with a model or a script.

The program reads its state from the sessions' records and stores nothing, so it can be restarted at any time. No part
of the server imports it.
"""
