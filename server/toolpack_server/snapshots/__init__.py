"""Serialization of object graphs to bytes and back, exactly and safely.

This package knows neither sessions nor toolpacks. The allowed classes are fixed before the first byte is read.
"""
