"""Protocols by which agents reach a session besides JSON-RPC."""
