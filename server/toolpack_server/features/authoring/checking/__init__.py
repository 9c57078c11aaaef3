"""What `check` finds by loading toolpacks, and by reading their code; other distributions may look deeper."""
