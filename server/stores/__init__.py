"""Stores of sessions: the protocol of all (`base`), what they have in common, and the two that need nothing but Python.

The rule: no store knows another, and all pass one contract test. Whoever opens one asks `wiring.stores`.
"""
