"""Public API for features that other distributions provide. `core.FEATURE_API` is the version of this API."""
