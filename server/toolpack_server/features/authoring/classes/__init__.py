"""Class worlds: toolpacks of classes that weren't written for agents, whose environment is instances of them.

Nothing of this touches the classes.
"""
