"""Session stores: the protocol (`base`), rules that all stores share (`history`, `blob_stubs`), and the memory store.

Stores don't depend on each other, and all pass the same contract test. `wiring.stores` opens a store by its URL.
"""
