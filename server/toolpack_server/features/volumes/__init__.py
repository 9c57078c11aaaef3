"""Databases and files: the two kinds of volumes that authors may put into environments."""
