"""Harbor: tasks written as the folders that its harness runs."""
