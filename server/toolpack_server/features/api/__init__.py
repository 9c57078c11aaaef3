"""Public API for features in other distributions. Its version is `core.FEATURE_API`."""
