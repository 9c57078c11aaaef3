"""Object graphs as bytes and back, exact and safe to read.

The rule: it knows neither sessions nor toolpacks. Which classes may appear is fixed before the first byte is read.
"""
