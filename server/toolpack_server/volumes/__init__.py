"""Volumes: the parts of an environment that are stored as changes, such as a database.

This package contains their storage, their working copies and their limits. The code for each kind of volume is in the
package of its feature.
"""
