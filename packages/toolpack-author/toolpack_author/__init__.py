"""Tools for authors of toolpacks: the command `audit` for tasks, and the trial calls of the command `check`."""
