"""Volumes: the parts of an environment that are stored as changes, such as a database.

This package has their storage, their working copies and their limits. The code for a single kind of volume is in the
package of its feature.
"""
