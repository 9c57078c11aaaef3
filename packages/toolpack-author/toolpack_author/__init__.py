"""What authors of toolpacks run before agents do: `audit` of tasks, and the calls of `check`."""
