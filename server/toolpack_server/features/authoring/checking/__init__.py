"""The command `check`, which loads toolpacks and reads their code to find mistakes. Other packages can add checks."""
