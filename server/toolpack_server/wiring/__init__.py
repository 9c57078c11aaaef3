"""Where the server is put together: its features are found, and the whole is wired in one place.

Nothing below imports from here.
"""
