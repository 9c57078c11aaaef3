"""Protocols for agents besides JSON-RPC. Each subpackage is a feature with one protocol."""
