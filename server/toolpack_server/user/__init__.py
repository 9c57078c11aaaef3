"""The simulated user: a program that plays a participant of many sessions, with a model or a script.

The program reads everything from the sessions' records and stores nothing. No part of the server imports it.
"""
