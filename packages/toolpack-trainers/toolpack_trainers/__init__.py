"""Protocols with which trainers' clients play tasks: Open Reward Standard, OpenEnv, NeMo Gym, and Harbor's folders."""
