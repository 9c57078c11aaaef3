"""Convert object graphs to bytes and back, exactly and safely.

Nothing here knows sessions or toolpacks. Which classes may appear is fixed before the first byte is read.
"""
