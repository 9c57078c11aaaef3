"""Serialization of object graphs to bytes and back, exactly and safely.

The bytes might be forged, so the classes of the objects in them are limited before the first byte is read. This package
doesn't depend on sessions or toolpacks.
"""
