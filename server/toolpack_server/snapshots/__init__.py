"""Serialization of object graphs to bytes and back, exactly and safely.

The bytes may be forged, so the classes of objects that they can contain are fixed before the first byte is read. This
package doesn't depend on sessions and toolpacks.
"""
