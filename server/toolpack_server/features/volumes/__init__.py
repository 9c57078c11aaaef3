"""Databases and files, the two kinds of volumes that authors can put into environments."""
