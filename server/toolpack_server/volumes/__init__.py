"""What an environment holds that is stored by what changes, such as a database: its kinds, working copies and limits.

What only one kind of volume needs is in the package of its feature.
"""
