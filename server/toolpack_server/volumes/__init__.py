"""Volumes: the parts of an environment that are stored as changes, such as a database.

This package has their storage, their working copies and their limits. What only one kind of volume needs is in the
package of its feature.
"""
