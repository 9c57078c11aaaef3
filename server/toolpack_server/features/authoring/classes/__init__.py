"""Toolpacks from ordinary Python classes: instances are the environment, public methods are the functions.

The classes themselves aren't changed.
"""
