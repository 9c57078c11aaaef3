"""What a server is asked, by the guarantee that it is about.

A probe's docstring is the sentence that the server must keep, and the report prints it. Each
probe makes sessions of its own, so that one that fails says nothing of the others.
"""
