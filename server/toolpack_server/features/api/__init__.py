"""Names that features of other distributions import; their version is `core.FEATURE_API`."""
