"""Protocols of trainers' clients, which play the server's tasks: Open Reward Standard, OpenEnv, NeMo Gym, Harbor."""
