"""The command `check`: find mistakes by loading toolpacks and reading their code. Other packages can add checks."""
