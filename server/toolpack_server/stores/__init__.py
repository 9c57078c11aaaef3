"""Stores of sessions: the protocol of all (`base`), what those that last have in common, and the one in memory.

No store knows another, and all pass one contract test. Whoever opens one asks `wiring.stores`.
"""
