"""Toolpacks from ordinary Python classes: an instance becomes the environment, its public methods the functions.

The classes themselves aren't changed.
"""
