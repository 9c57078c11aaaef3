"""Databases and files in environments: what an author puts there, and how it is kept."""
