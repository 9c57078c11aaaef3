"""Export of tasks as folders for the Harbor harness."""
